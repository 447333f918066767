"""WHO GETS WHAT: the one question a policy answers, and the policies that need no plan."""
