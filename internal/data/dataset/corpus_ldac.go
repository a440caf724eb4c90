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

// The LDA-C format (Blei) has one document per line, "N word:count word:count …", with N distinct words, numbered from
// 0. Line i of vocab.txt in the same directory is the spelling of word i.

// maxWord is the max number of a word, and maxCount the max count of a word in a document. Both exceed practical needs
// and only keep one mistyped number from exhausting memory.
const maxWord, maxCount = 1<<24 - 1, 1 << 20

// loadCorpusFiles reads files of documents; test may be "".
func loadCorpusFiles(name, train, test string) (*Corpus, error) {
	c := &Corpus{Name: name}
	var err error
	vocabulary := filepath.Join(filepath.Dir(train), "vocab.txt")
	if c.Words, err = readWords(vocabulary); err != nil {
		return nil, err
	}
	which := func(i int) *Documents { return partOf(i, &c.Train, &c.Test) }
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

// readWords reads a vocabulary; it returns nil if the file does not exist.
func readWords(path string) (words []string, err error) {
	if _, err := os.Stat(path); err != nil {
		return nil, nil
	}
	err = readLines(path, func(_ int, word []byte) error {
		if len(word) == 0 {
			return errors.New("empty line; each line must have one word")
		}
		words = append(words, string(word))
		return nil
	})
	return words, err
}

// read adds a file's documents to the parts that which selects by their index.
func (c *Corpus) read(path string, which func(i int) *Documents) error {
	return readLines(path, func(number int, line []byte) error {
		if line = bytes.TrimSpace(line); len(line) == 0 {
			return errors.New(`empty line; write "0" for a document without words`)
		}
		return c.document(line, which(number-1))
	})
}

// document parses one line.
func (c *Corpus) document(line []byte, to *Documents) error {
	start := len(to.Tokens)
	first, rest, _ := bytes.Cut(line, []byte(" "))
	words, err := strconv.ParseUint(string(first), 10, 31)
	if err != nil {
		return fmt.Errorf("it starts with %.40q, not with the number of words", first)
	}
	for found := uint64(0); ; found++ {
		if rest = bytes.TrimLeft(rest, " \t"); len(rest) == 0 {
			if found != words {
				return fmt.Errorf("its first number is %d, but it has %d words", words, found)
			}
			slices.Sort(to.Tokens[start:])
			to.endDocument()
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
			return fmt.Errorf("%.40q is not word:count, with a word from 0 to %d and a count from 1 to %d", field,
				maxWord, maxCount)
		case c.Words != nil && int(id) >= len(c.Words):
			return fmt.Errorf("word %d is not in vocab.txt, which has %d words, numbered from 0", id, len(c.Words))
		}
		for range times {
			to.Tokens = append(to.Tokens, int32(id))
		}
	}
}
