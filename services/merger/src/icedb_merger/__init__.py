"""The merger: small data files become large ones, small log files one."""
