"""Data sets in many files of which any item can be read: Parquet, and tar files as WebDataset writes them."""
