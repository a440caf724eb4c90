package study

// Cells is how small panels stand in rows, below title and legend.
type Cells struct {
	Columns    int
	Wide, High float64 // of a panel
}

// Small are cells for many panels.
var Small = Cells{Columns: 4, Wide: 184, High: 150}

// Where the first panel is, and how far apart they are.
const (
	cellLeft  = 62.0
	cellTop   = 124.0
	cellRight = 48.0 // between two
	cellBelow = 74.0
)

// Canvas has room for n panels.
func (l Cells) Canvas(n int, title, subtitle string) *Canvas {
	rows := float64((n + l.Columns - 1) / l.Columns)
	return NewCanvas(cellLeft+float64(l.Columns)*(l.Wide+cellRight)-cellRight+24, cellTop-20+rows*(l.High+cellBelow),
		title, subtitle)
}

// Panel is the i-th panel of such a canvas.
func (l Cells) Panel(c *Canvas, i int) *Panel {
	return &Panel{
		Canvas: c, Width: l.Wide, Height: l.High,
		Left: cellLeft + float64(i%l.Columns)*(l.Wide+cellRight),
		Top:  cellTop + float64(i/l.Columns)*(l.High+cellBelow),
	}
}
