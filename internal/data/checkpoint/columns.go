package checkpoint

import (
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/table"
)

// A column is the content of one section of a table: the same number of bytes for each row, in the order of the rows.
type column struct {
	kind     uint32
	plane    int   // index in Image.Planes; only for sectionValues and sectionPlane
	word     int   // bytes per number
	rowBytes int64 // bytes per row
}

// columns returns a table's columns in the order of its sections.
func columns(spec perdure.TableSpec) (out []column) {
	if spec.Sparse {
		out = append(out, column{kind: sectionIDs, word: 8, rowBytes: 8})
	}
	if spec.Evict > 0 {
		out = append(out, column{kind: sectionTouched, word: 4, rowBytes: 4})
	}
	row := 4 * int64(spec.Dim)
	out = append(out, column{kind: sectionValues, word: 4, rowBytes: row})
	full, perRow := table.StateShape(spec.Rule)
	for plane := 1; plane <= full; plane++ {
		out = append(out, column{kind: sectionPlane, plane: plane, word: 4, rowBytes: row})
	}
	if perRow {
		out = append(out, column{kind: sectionPlane, plane: full + 1, word: 4, rowBytes: 4})
	}
	return out
}

// rowBytes returns the bytes per row of all columns together.
func rowBytes(cols []column) (n int64) {
	for _, c := range cols {
		n += c.rowBytes
	}
	return n
}

// index returns the index of the column's section for table number t.
func (c column) index(t int) uint32 {
	if c.kind == sectionPlane {
		return uint32(t<<planeBits | c.plane)
	}
	return uint32(t)
}

// bytesOf returns the column's memory in an image.
func (c column) bytesOf(img table.Image) [][]byte {
	switch c.kind {
	case sectionIDs:
		return asBytes(img.IDs)
	case sectionTouched:
		return asBytes(img.Touched)
	}
	return asBytes(img.Planes[c.plane])
}

// checkImage returns an error if an image does not match its table.
func checkImage(spec perdure.TableSpec, img table.Image) error {
	cols := columns(spec)
	planes := cols[len(cols)-1].plane + 1
	ids, touched := totalBytes(asBytes(img.IDs)), totalBytes(asBytes(img.Touched))
	switch {
	case len(img.Planes) != planes:
		return fmt.Errorf("table %s: image has %d planes, but rule %s has %d", spec.Name, len(img.Planes),
			spec.Rule.Kind, planes)
	case !spec.Sparse && ids != 0:
		return fmt.Errorf("table %s: image has row ids, but the table is dense", spec.Name)
	case spec.Evict == 0 && touched != 0:
		return fmt.Errorf(
			"table %s: the image has the clock of each row's last update, but the table does not evict rows", spec.Name)
	}
	for _, c := range cols {
		if n := totalBytes(c.bytesOf(img)); n%c.rowBytes != 0 || n/c.rowBytes != int64(img.Rows) {
			return fmt.Errorf("table %s: image has %[3]d bytes of %[2]s, but %[4]d rows of %[5]d bytes each", spec.Name,
				c, n, img.Rows, c.rowBytes)
		}
	}
	return nil
}

func (c column) String() string {
	switch c.kind {
	case sectionIDs:
		return "row ids"
	case sectionTouched:
		return "clocks of last updates"
	case sectionValues:
		return "values"
	}
	return fmt.Sprintf("state plane %d", c.plane)
}

func totalBytes(pieces [][]byte) (n int64) {
	for _, p := range pieces {
		n += int64(len(p))
	}
	return n
}

// newImage allocates an image, each column in one piece.
func newImage(spec perdure.TableSpec, rows int64) table.Image {
	img := table.Image{Rows: int(rows)}
	for _, c := range columns(spec) {
		switch c.kind {
		case sectionIDs:
			img.IDs = [][]perdure.RowID{make([]perdure.RowID, rows)}
		case sectionTouched:
			img.Touched = [][]uint32{make([]uint32, rows)}
		default:
			img.Planes = append(img.Planes, [][]float32{make([]float32, rows*c.rowBytes/4)})
		}
	}
	return img
}
