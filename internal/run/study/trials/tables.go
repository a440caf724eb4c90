package trials

import (
	"encoding/csv"
	"fmt"
	"os"
	"runtime"
	"strings"
)

// Machine is what the study ran on.
type Machine struct {
	Cores int
	CPU   string
}

// MachineNow describes the machine that this program runs on.
func MachineNow() Machine {
	m := Machine{Cores: runtime.NumCPU(), CPU: "unknown processor"}
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for l := range strings.Lines(string(text)) {
			if name, value, _ := strings.Cut(l, ":"); strings.TrimSpace(name) == "model name" {
				m.CPU = strings.TrimSpace(value)
			}
		}
	}
	return m
}

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
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	w := csv.NewWriter(f)
	if err := w.WriteAll(rows); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}
