"""What each notebook trains: one file per paper, one function Params -> list of RunSpec per notebook."""
