"""Small data files become large ones, small log files one."""
