package dataset

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// The format LDA-C (Blei): a document a line, "N word:count word:count …", of N words with numbers from 0.
// vocab.txt beside it has in its line i how word i is written.

// maxWord is the highest number of a word, and maxCount how often a document may have one: far beyond use, so that
// one mistyped number does not take all memory.
const maxWord, maxCount = 1<<24 - 1, 1 << 20

// loadCorpusFiles reads files of documents; test may be "".
func loadCorpusFiles(name, train, test string) (*Corpus, error) {
	c := &Corpus{Name: name}
	var err error
	vocabulary := filepath.Join(filepath.Dir(train), "vocab.txt")
	if c.Words, err = readWords(vocabulary); err != nil {
		return nil, err
	}
	which := func(i int) *Documents { return part(i, &c.Train, &c.Test) }
	if test != "" {
		which = func(int) *Documents { return &c.Train }
		if err := c.read(test, func(int) *Documents { return &c.Test }); err != nil {
			return nil, err
		}
	}
	if err := c.read(train, which); err != nil {
		return nil, err
	}
	c.Size = max(len(c.Words), c.wordsUsed())
	return c, nil
}

// readWords reads a vocabulary; nil: there is no such file.
func readWords(path string) (words []string, err error) {
	if _, err := os.Stat(path); err != nil {
		return nil, nil
	}
	err = readLines(path, func(_ int, word []byte) error {
		if len(word) == 0 {
			return errors.New("no word; each line has one")
		}
		words = append(words, string(word))
		return nil
	})
	return words, err
}

// read adds a file's documents to the part that each belongs to, by its number.
func (c *Corpus) read(path string, which func(i int) *Documents) error {
	return readLines(path, func(number int, line []byte) error {
		if line = bytes.TrimSpace(line); len(line) == 0 {
			return errors.New(`empty; a document without words is "0"`)
		}
		return c.document(line, which(number-1))
	})
}

// document reads one line.
func (c *Corpus) document(line []byte, to *Documents) error {
	begin := len(to.Tokens)
	first, rest, _ := bytes.Cut(line, []byte(" "))
	words, err := strconv.ParseUint(string(first), 10, 31)
	if err != nil {
		return fmt.Errorf("it begins with %.40q, not with how many words follow", first)
	}
	for found := uint64(0); ; found++ {
		if rest = bytes.TrimLeft(rest, " \t"); len(rest) == 0 {
			if found != words {
				return fmt.Errorf("it says %d words and has %d", words, found)
			}
			slices.Sort(to.Tokens[begin:])
			to.end()
			return nil
		}
		field := rest
		if at := bytes.IndexAny(rest, " \t"); at >= 0 {
			field = rest[:at]
		}
		rest = rest[len(field):]
		word, count, ok := bytes.Cut(field, []byte(":"))
		id, err := strconv.ParseUint(string(word), 10, 32)
		times, err2 := strconv.ParseUint(string(count), 10, 32)
		switch {
		case !ok || err != nil || err2 != nil || id > maxWord || times < 1 || times > maxCount:
			return fmt.Errorf("%.40q is not word:count, of a word from 0 to %d and a count from 1 to %d", field,
				maxWord, maxCount)
		case c.Words != nil && int(id) >= len(c.Words):
			return fmt.Errorf("word %d, and the vocabulary beside it has %d, from 0", id, len(c.Words))
		}
		for range times {
			to.Tokens = append(to.Tokens, int32(id))
		}
	}
}
