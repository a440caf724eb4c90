package humanize

import (
	"encoding/csv"
	"fmt"
	"io"
	"path/filepath"

	"github.com/perdure/perdure/internal/data/disk"
)

// Record formats values as cells of a table. Unknown values (NaN or nil) are empty cells.
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

// WriteCSV writes rows to a file. The first row is the header. It writes no file if there is only a header, since then
// a part of the program did not run.
func WriteCSV(file string, rows [][]string) error {
	if len(rows) == 1 { // only a header
		return nil
	}
	return disk.WriteFile(disk.OS(), filepath.ToSlash(file), func(w io.Writer) error {
		return csv.NewWriter(w).WriteAll(rows)
	})
}
