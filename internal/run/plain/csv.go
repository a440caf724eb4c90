package plain

import (
	"encoding/csv"
	"fmt"
	"io"
	"path/filepath"

	"github.com/perdure/perdure/internal/data/disk"
)

// Record writes values as cells of a table; what is not known is empty.
func Record(values ...any) (row []string) {
	for _, v := range values {
		switch v := v.(type) {
		case float64:
			if v != v {
				row = append(row, "")
			} else {
				row = append(row, Format(v))
			}
		case *float64:
			if v == nil {
				row = append(row, "")
			} else {
				row = append(row, Format(*v))
			}
		default:
			row = append(row, fmt.Sprint(v))
		}
	}
	return row
}

// WriteCSV writes rows, of which the first is the header; a header alone is of a part
// that did not run, and makes no file.
func WriteCSV(file string, rows [][]string) error {
	if len(rows) == 1 { // nothing but the header: the part did not run
		return nil
	}
	return disk.WriteFile(disk.OS(), filepath.ToSlash(file), func(w io.Writer) error {
		return csv.NewWriter(w).WriteAll(rows)
	})
}
