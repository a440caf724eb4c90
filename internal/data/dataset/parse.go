package dataset

import (
	"bytes"
	"math"
	"strconv"
)

// ratingParser parses lines "user,item,rating". Nearly all lines of real files are plain digits, which fast parses. It
// leaves other lines to slow, which also produces the error messages.
type ratingParser struct {
	path     string
	ratings  Ratings
	line     int    // lines before the current one
	columns  int    // per line; 0 if not known yet
	by       string // separator; "" if not known yet
	ids      [2]ids // of users and items
	last     int32
	unsorted bool // a user follows one with a higher number
}

// block parses complete lines.
func (p *ratingParser) block(b []byte) error {
	if p.line == 0 {
		b = bytes.TrimPrefix(b, byteOrderMark)
	}
	for len(b) > 0 {
		user, item, value, n := p.fast(b)
		if n == 0 {
			var line []byte
			line, b = cutLine(b)
			if err := p.slow(line); err != nil {
				return err
			}
			p.line++
			continue
		}
		p.add(user, item, value)
		p.line++
		b = b[n:]
	}
	return nil
}

func (p *ratingParser) add(user, item int32, value float32) {
	if user < p.last {
		p.unsorted = true
	}
	p.last = user
	p.ratings.add(user, item, value)
}

// powers are the powers of ten that float64 represents exactly and that ratings need.
var powers = [16]float64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15}

// fast parses the line at the start of b, which contains a '\n', and returns its length including the '\n', or 0 if it
// is not of the plainest form.
func (p *ratingParser) fast(b []byte) (user, item int32, value float32, n int) {
	if p.columns == 0 || len(p.by) != 1 || !p.ids[0].numbers || !p.ids[1].numbers {
		return 0, 0, 0, 0 // the first line determines the format
	}
	by := p.by[0]
	u, i := digits(b, 0)
	if i == 0 || b[i] != by || u > maxID {
		return 0, 0, 0, 0
	}
	at := i + 1
	v, i := digits(b, at)
	if i == at || b[i] != by || v > maxID {
		return 0, 0, 0, 0
	}
	at = i + 1
	negative := b[at] == '-'
	if negative {
		at++
	}
	whole, i := digits(b, at)
	if i == at {
		return 0, 0, 0, 0
	}
	r := float64(whole)
	if b[i] == '.' {
		at = i + 1
		var fraction uint64
		if fraction, i = digits(b, at); i == at {
			return 0, 0, 0, 0
		}
		// Both are below 2⁵³ if there are at most 15 digits in all: one rounding.
		if i-at > 6 || whole > 1e8 {
			return 0, 0, 0, 0
		}
		r = float64(whole*uint64(powers[i-at])+fraction) / powers[i-at]
	}
	if b[i] == by && p.columns == 4 {
		end := i + bytes.IndexByte(b[i:], '\n')
		if bytes.IndexByte(b[i+1:end], by) >= 0 {
			return 0, 0, 0, 0
		}
		i = end
	} else if b[i] != '\n' || p.columns != 3 {
		return 0, 0, 0, 0
	}
	if negative {
		r = -r
	}
	return int32(u), int32(v), float32(r), i + 1
}

// digits parses a whole number starting at at and returns its end. The end is at if there is no number or it has more
// than nine digits.
func digits(b []byte, at int) (v uint64, end int) {
	i := at
	for ; i < len(b); i++ {
		d := b[i] - '0'
		if d > 9 {
			break
		}
		v = v*10 + uint64(d)
	}
	if i-at > 9 {
		return 0, at
	}
	return v, i
}

// slow parses any line or returns the error.
func (p *ratingParser) slow(line []byte) error {
	if len(line) == 0 {
		return nil
	}
	if p.by == "" {
		p.by = separator(line)
	}
	fields, err := split(line, p.by)
	if err != nil {
		return corrupt(p.path, "line %d: %v", p.line+1, err)
	}
	if n := len(fields); p.columns == 0 && (n == 3 || n == 4) {
		p.columns = n
	}
	if len(fields) != p.columns {
		return corrupt(p.path, "line %d: %d columns; write \"user,item,rating\" and at most one more column, in all "+
			"lines or in none", p.line+1, len(fields))
	}
	v, err := strconv.ParseFloat(fields[2], 32)
	if err != nil && p.line == 0 && isHeading(line) && isHeading([]byte(fields[2])) {
		return nil
	}
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
		return corrupt(p.path, "line %d: rating %.40q is not a finite number", p.line+1, fields[2])
	}
	var rows [2]int32
	for i := range rows {
		if rows[i], err = p.ids[i].row(fields[i]); err != nil {
			return corrupt(p.path, "line %d: %s %v", p.line+1, []string{"user", "item"}[i], err)
		}
	}
	p.add(rows[0], rows[1], float32(v))
	return nil
}
