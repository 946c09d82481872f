"""What each notebook trains: a function Params -> list of RunSpec per notebook; files are named after the paper."""
