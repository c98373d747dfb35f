"""What a value is: the calendar that all of its forms share."""
