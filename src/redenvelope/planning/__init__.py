"""FOR ANY PRICE: what every action is worth, by a tree grown once for all prices, or by values learned without one."""
