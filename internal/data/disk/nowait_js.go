package disk

// noWait is 0 in the browser, where simulations are replayed: no pipe is opened there.
const noWait = 0
