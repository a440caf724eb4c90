package disk

// noWait is nothing where simulations are replayed: no pipe is opened there.
const noWait = 0
