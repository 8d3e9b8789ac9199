"""Files of jobs, outside the worker: in a folder of the volume, in a bucket, at an address."""
