package study

// Small panels stand in rows of four, below title and legend.
const (
	columns   = 4
	cellLeft  = 62.0
	cellTop   = 124.0
	cellWide  = 184.0
	cellHigh  = 150.0
	cellRight = 48.0 // between two
	cellBelow = 74.0
)

// CellsCanvas has room for n panels.
func CellsCanvas(n int, title, subtitle string) *Canvas {
	rows := float64((n + columns - 1) / columns)
	return NewCanvas(cellLeft+columns*(cellWide+cellRight)-cellRight+24, cellTop-20+rows*(cellHigh+cellBelow), title, subtitle)
}

// Cell is the i-th panel.
func (c *Canvas) Cell(i int) *Panel {
	return &Panel{
		Canvas: c, Width: cellWide, Height: cellHigh,
		Left: cellLeft + float64(i%columns)*(cellWide+cellRight), Top: cellTop + float64(i/columns)*(cellHigh+cellBelow),
	}
}
