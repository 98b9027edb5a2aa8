"""The museum's rooms: each module holds BUGS; every module that lies here counts."""
