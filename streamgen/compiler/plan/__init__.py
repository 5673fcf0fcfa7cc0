"""How much hardware an operation gets: policies and groups under the budgets."""
