"""What every table format does alike: folding changes in memory, and finding rows by their key in Parquet files."""
