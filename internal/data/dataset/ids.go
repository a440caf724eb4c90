package dataset

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// ids assigns rows to users or items. The first id of a file determines whether all are numbers, which are the rows, or
// names, which are numbered in order of appearance.
type ids struct {
	numbers bool
	rows    map[string]int32 // of names; nil if ids are numbers
	names   []string         // by row
	bytes   int              // of all names
}

// Limits of names, which exceed practical needs, so that a file with other content is detected. All names together are
// in the metadata of a model's file.
const (
	maxNameBytes  = 200
	maxNamesBytes = 32 << 20
)

func (d *ids) row(id string) (int32, error) {
	if !d.numbers && d.rows == nil {
		if _, err := number(id); err == nil {
			d.numbers = true
		} else {
			d.rows = map[string]int32{}
		}
	}
	if d.numbers {
		return number(id)
	}
	row, known := d.rows[id]
	if known {
		return row, nil
	}
	switch {
	case id == "":
		return 0, errors.New("has no name")
	case len(id) > maxNameBytes || !utf8.ValidString(id) || strings.ContainsFunc(id, unicode.IsControl):
		return 0, fmt.Errorf("%.40q is not a valid name; use at most %d bytes of UTF-8 and no control characters", id,
			maxNameBytes)
	case len(d.names) > maxID || d.bytes+len(id) > maxNamesBytes:
		return 0, fmt.Errorf("too many names at %.40q: %d names of %d bytes so far; use numbers from 0 instead", id,
			len(d.names), d.bytes)
	}
	row = int32(len(d.names))
	d.rows[id], d.names, d.bytes = row, append(d.names, id), d.bytes+len(id)
	return row, nil
}

// number parses an id that is the row's number.
func number(id string) (int32, error) {
	v, err := strconv.ParseUint(id, 10, 64)
	if err != nil || v > maxID {
		return 0, fmt.Errorf("%.40q is not a whole number from 0 to %d, but the first id is", id, maxID)
	}
	return int32(v), nil
}

// separator determines the column separator of a file from one of its lines.
func separator(line []byte) string {
	for _, by := range []string{"\t", "::", ",", ";"} {
		if bytes.Contains(line, []byte(by)) {
			return by
		}
	}
	return " "
}

// split returns the columns of a line without surrounding blanks. A column in quotes, as written by spreadsheets, may
// contain the separator.
func split(line []byte, by string) ([]string, error) {
	if by == " " {
		return strings.Fields(string(line)), nil
	}
	var fields []string
	if len(by) == 1 && bytes.IndexByte(line, '"') >= 0 {
		r := csv.NewReader(bytes.NewReader(line))
		r.Comma, r.TrimLeadingSpace = rune(by[0]), true
		var err error
		if fields, err = r.Read(); err != nil {
			return nil, errors.New("unbalanced quotes")
		}
	} else {
		fields = strings.Split(string(line), by)
	}
	for i, f := range fields {
		fields[i] = strings.TrimSpace(f)
	}
	return fields, nil
}

// ReadPairs reads lines "user,item" in any form that ratings may have, with any additional columns, and passes each to
// a function. It adds the line number to the function's errors.
func ReadPairs(path string, each func(user, item string) error) error {
	by := ""
	return readLines(path, func(number int, line []byte) error {
		if len(line) == 0 {
			return nil
		}
		if by == "" {
			by = separator(line)
		}
		fields, err := split(line, by)
		if err == nil && len(fields) < 2 {
			err = fmt.Errorf("the line has %d column; write \"user,item\"", len(fields))
		}
		if err == nil {
			err = each(fields[0], fields[1])
		}
		if number == 1 && isHeading(line) {
			return nil
		}
		return err
	})
}
