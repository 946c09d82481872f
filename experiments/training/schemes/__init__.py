"""What training optimises, one scheme per file: `RunSpec.scheme` names the file, `scheme_options` its options."""
