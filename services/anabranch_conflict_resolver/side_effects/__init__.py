"""What a batch's statements change beside what they name."""
