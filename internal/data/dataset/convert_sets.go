package dataset

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// jesterJokes is the number of jokes in Jester's data set 1, and jesterMissing the mark of a missing rating.
const jesterJokes, jesterMissing = 100, 99

// jesterShape is the size of a part of Jester's data set 1.
type jesterShape struct{ users, ratings int }

// convert reads a table with a line per user: the number of the user's ratings, and then the ratings of all jokes. It
// writes lines user,item,rating, numbered from 0 in the order of the table, with two decimals.
func (s jesterShape) convert(from, _ string, to *staging) error {
	if err := refuseSpreadsheet(from); err != nil {
		return err
	}
	out, err := to.create("jester1.csv.gz")
	if err != nil {
		return err
	}
	users, ratings := 0, 0
	err = readLines(from, func(number int, line []byte) error {
		n, err := writeJesterUser(out.Writer, line, number-1)
		users, ratings = number, ratings+n
		return err
	})
	if err == nil && (users != s.users || ratings != s.ratings) {
		err = corrupt(from, "has %d users and %d ratings; jester-data-1 has %d and %d", users, ratings, s.users,
			s.ratings)
	}
	return err
}

// refuseSpreadsheet returns an error if a file is an Excel file or a zip archive of one.
func refuseSpreadsheet(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return openError(path, err)
	}
	defer func() { _ = f.Close() }() // only read
	head, err := bufio.NewReader(f).Peek(4)
	switch {
	case err == nil && string(head) == "PK\x03\x04":
		return corrupt(path, "is a zip archive or an .xlsx file; unzip it, and export jester-data-1.xls as CSV")
	case err == nil && string(head) == "\xd0\xcf\x11\xe0":
		return corrupt(path, "is an Excel file; export it as CSV, for example: soffice --headless --convert-to csv %s",
			filepath.Base(path))
	}
	return nil
}

// writeJesterUser writes the ratings on a user's line and returns their number.
func writeJesterUser(out *bufio.Writer, line []byte, user int) (ratings int, err error) {
	if n := bytes.Count(line, []byte(",")) + 1; n != jesterJokes+1 {
		return 0, fmt.Errorf("%d comma-separated columns; a Jester line has a count and %d ratings", n, jesterJokes)
	}
	first, line, _ := bytes.Cut(line, []byte(","))
	announced, err := strconv.ParseUint(string(first), 10, 8)
	if err != nil || announced > jesterJokes {
		return 0, fmt.Errorf("count %.40q is not a whole number from 0 to %d", first, jesterJokes)
	}
	var buf []byte
	for joke := range jesterJokes {
		var field []byte
		field, line, _ = bytes.Cut(line, []byte(","))
		v, err := strconv.ParseFloat(string(field), 64)
		if err == nil && v == jesterMissing {
			continue
		}
		hundredths := math.Round(v * 100)
		if err != nil || !(math.Abs(v) <= 10) || math.Abs(v*100-hundredths) > 1e-6 {
			return 0, fmt.Errorf("rating %.40q of joke %d is not a number from -10 to 10 with two decimals, or %d",
				field, joke+1, jesterMissing)
		}
		buf = strconv.AppendInt(buf[:0], int64(user), 10)
		buf = append(buf, ',')
		buf = strconv.AppendInt(buf, int64(joke), 10)
		buf = append(buf, ',')
		buf = strconv.AppendFloat(buf, (hundredths+0)/100, 'f', 2, 64) // + 0 makes -0 a 0
		_, _ = out.Write(append(buf, '\n'))
		ratings++
	}
	if uint64(ratings) != announced {
		return 0, fmt.Errorf("the line has %d ratings, but its first column says %d", ratings, announced)
	}
	return ratings, nil
}

// newsShape is the size of 20 Newsgroups: words of the vocabulary, and documents of both parts.
type newsShape struct{ words, train, test int }

// newsClasses is the number of newsgroups.
const newsClasses = 20

// convert reads the archive of word counts, with lines document word count, all numbered from 1, and the vocabulary
// next to the archive. It writes the LDA-C format, in which words are numbered from 0, sorted within a document.
func (s newsShape) convert(from, temp string, to *staging) error {
	vocabulary := filepath.Join(filepath.Dir(from), "vocabulary.txt")
	words, err := readWords(vocabulary)
	switch {
	case err != nil:
		return err
	case words == nil:
		return &FileError{Path: vocabulary, Problem: "no such file; put it next to the archive", Kind: ErrMissing}
	case len(words) != s.words:
		return corrupt(vocabulary, "has %d words; the vocabulary of 20 Newsgroups has %d", len(words), s.words)
	}
	temp = filepath.Join(temp, "unpacked")
	if err := untar(from, temp); err != nil {
		return err
	}
	dir := filepath.Join(temp, "20news-bydate", "matlab")
	if _, err := os.Stat(filepath.Join(dir, "train.data")); err != nil {
		return corrupt(from, "has no 20news-bydate/matlab/train.data; download 20news-bydate-matlab.tgz")
	}
	for _, part := range []struct {
		name      string
		documents int
	}{{"train", s.train}, {"test", s.test}} {
		documents, err := writeNews(filepath.Join(dir, part.name+".data"), part.name+".ldac.gz", len(words), to)
		if err != nil {
			return inArchive(from, err)
		}
		labels, err := writeNewsLabels(filepath.Join(dir, part.name+".label"), part.name+".labels", to)
		if err != nil {
			return inArchive(from, err)
		}
		if documents != part.documents || labels != documents {
			return corrupt(from, "has %d documents in %[2]s.data and %[3]d labels in %[2]s.label; 20 Newsgroups "+
				"by date has %[4]d", documents, part.name, labels, part.documents)
		}
	}
	out, err := to.create("vocab.txt")
	if err != nil {
		return err
	}
	for _, word := range words {
		_, _ = out.WriteString(word + "\n")
	}
	return nil
}

// inArchive replaces the name of a file that was unpacked temporarily with its name inside the archive.
func inArchive(archive string, err error) error {
	var fault *FileError
	if !errors.As(err, &fault) {
		return err
	}
	return &FileError{Path: archive, Problem: filepath.Base(fault.Path) + ": " + fault.Problem, Kind: fault.Kind}
}

// writeNews converts a file of word counts and returns the number of its documents.
func writeNews(from, name string, words int, to *staging) (documents int, err error) {
	out, err := to.create(name)
	if err != nil {
		return 0, err
	}
	type entry struct{ word, count uint64 }
	var doc []entry
	write := func() error {
		slices.SortFunc(doc, func(a, b entry) int { return int(a.word) - int(b.word) })
		_, _ = fmt.Fprintf(out, "%d", len(doc))
		for i, e := range doc {
			if i > 0 && doc[i-1].word == e.word {
				return fmt.Errorf("word %d of document %d is counted twice", e.word, documents)
			}
			_, _ = fmt.Fprintf(out, " %d:%d", e.word-1, e.count)
		}
		_ = out.WriteByte('\n')
		doc = doc[:0]
		return nil
	}
	err = readLines(from, func(_ int, line []byte) error {
		fields := bytes.Fields(line)
		if len(fields) != 3 {
			return fmt.Errorf("%d columns; each line has three: document, word and count", len(fields))
		}
		var v [3]uint64
		for i, field := range fields {
			var err error
			if v[i], err = strconv.ParseUint(string(field), 10, 31); err != nil || v[i] == 0 {
				return fmt.Errorf("%.40q is not a whole number above 0", field)
			}
		}
		switch {
		case v[0] == uint64(documents)+1 && documents > 0:
			if err := write(); err != nil {
				return err
			}
			documents++
		case v[0] == 1 && documents == 0:
			documents++
		case v[0] != uint64(documents):
			return fmt.Errorf("documents are out of order: %d follows %d", v[0], documents)
		}
		if v[1] > uint64(words) || v[2] > maxCount {
			return fmt.Errorf("invalid word %d or count %d; the largest word is %d and the largest count %d", v[1],
				v[2], words, maxCount)
		}
		doc = append(doc, entry{v[1], v[2]})
		return nil
	})
	if err != nil {
		return 0, err
	}
	if err := write(); err != nil {
		return 0, corrupt(from, "%v", err)
	}
	return documents, nil
}

// writeNewsLabels copies a file of labels and returns their number.
func writeNewsLabels(from, name string, to *staging) (labels int, err error) {
	out, err := to.create(name)
	if err != nil {
		return 0, err
	}
	err = readLines(from, func(number int, line []byte) error {
		label, err := strconv.ParseUint(string(line), 10, 8)
		if err != nil || label < 1 || label > newsClasses {
			return fmt.Errorf("label %.40q is not a whole number from 1 to %d", line, newsClasses)
		}
		labels = number
		_, _ = fmt.Fprintf(out, "%d\n", label)
		return nil
	})
	return labels, err
}

// forestShape is the number of CoverType's rows: those to train on, those to test with, and all.
type forestShape struct{ train, test, rows int }

// convert reads the rows of CoverType. It writes the first ones for training and the next ones for tests, as the
// authors of the set divided it, and drops the others.
func (s forestShape) convert(from, _ string, to *staging) error {
	train, err := to.create(covertypeTrain + ".gz")
	if err != nil {
		return err
	}
	test, err := to.create(covertypeTest + ".gz")
	if err != nil {
		return err
	}
	rows := 0
	var row Split
	err = readLines(from, func(number int, line []byte) error {
		rows = number
		row.Features, row.Labels = row.Features[:0], row.Labels[:0]
		if err := row.addLabelled(line, false); err != nil {
			return err
		}
		out := train
		switch {
		case number > s.train+s.test:
			return nil
		case number > s.train:
			out = test
		}
		_, _ = out.Write(line)
		_ = out.WriteByte('\n')
		return nil
	})
	if err == nil && rows != s.rows {
		err = corrupt(from, "has %d rows; CoverType has %d", rows, s.rows)
	}
	return err
}
