"""The application's merge functions, asked in a process that can be killed."""
