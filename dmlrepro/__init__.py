"""dmlrepro: deep metric learning papers, checked claim by claim. Import the module you need; this file has none."""
