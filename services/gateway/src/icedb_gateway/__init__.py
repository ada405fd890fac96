"""The S3 gateway: tables as a read-only bucket, for engines that can only read ``s3://bucket/prefix/**/*.parquet``."""
