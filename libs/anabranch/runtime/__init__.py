"""What every service shares: configuration, server bootstrap, authentication, telemetry, health, clock."""
