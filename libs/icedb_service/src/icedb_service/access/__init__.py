"""Who may do what with which table: identities, the policy, and how gRPC, HTTP and tasks ask it."""
