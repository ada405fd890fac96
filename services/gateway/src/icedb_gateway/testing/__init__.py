"""What tests of the gateway, here and in other packages, share."""
