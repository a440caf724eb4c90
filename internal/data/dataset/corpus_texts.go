package dataset

import (
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/perdure/perdure/internal/data/disk"
)

// A word of a text is a run of at least three letters, in lower case, that is not a stop word and occurs in enough
// documents but not in too many.
const (
	minLetters          = 3
	maxLetters          = 40
	minDocumentsPerWord = 3   // min number of documents with a word, or one in a thousand of them if that is more
	maxDocumentShare    = 0.5 // max share of the documents
)

// maxTextBytes is the max size of one text file.
const maxTextBytes = 64 << 20

// loadTexts reads a directory of texts, in the order of their paths.
func loadTexts(dir string) (*Corpus, error) {
	var paths []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() && (endsWith(path, ".txt") || endsWith(path, ".json")) {
			paths = append(paths, path)
		}
		return err
	})
	if err != nil {
		return nil, &FileError{Path: dir, Problem: "cannot be read: " + err.Error(), Kind: err}
	}
	if len(paths) == 0 {
		return nil, &FileError{
			Path: dir, Problem: "has no train.ldac, and no files whose names end with .txt or .json",
			Kind: ErrMissing,
		}
	}
	var texts [][]string
	for _, path := range paths {
		more, err := readTexts(path)
		if err != nil {
			return nil, err
		}
		texts = append(texts, more...)
	}
	in := map[string]int{} // number of documents with a word
	for _, text := range texts {
		for word := range maps.Keys(wordSet(text)) {
			in[word]++
		}
	}
	least, most := max(minDocumentsPerWord, len(texts)/1000), max(float64(minDocumentsPerWord),
		maxDocumentShare*float64(len(texts)))
	maps.DeleteFunc(in, func(_ string, n int) bool { return n < least || float64(n) > most })
	c := &Corpus{Name: dir, Words: slices.Sorted(maps.Keys(in)), Size: len(in)}
	number := make(map[string]int32, len(in))
	for i, word := range c.Words {
		number[word] = int32(i)
	}
	for i, text := range texts {
		to := partOf(i, &c.Train, &c.Test)
		start := len(to.Tokens)
		for _, word := range text {
			if n, ok := number[word]; ok {
				to.Tokens = append(to.Tokens, n)
			}
		}
		slices.Sort(to.Tokens[start:])
		to.endDocument()
	}
	return c, nil
}

func wordSet(words []string) map[string]bool {
	set := make(map[string]bool, len(words))
	for _, w := range words {
		set[w] = true
	}
	return set
}

func endsWith(path, end string) bool { return strings.EqualFold(filepath.Ext(path), end) }

// readTexts returns the words of each document of a file: a text file is one document; a JSON file is a list of
// documents, and those without a body are ignored.
func readTexts(path string) ([][]string, error) {
	text, err := readFile(path)
	if err != nil {
		return nil, err
	}
	if !endsWith(path, ".json") {
		return [][]string{wordsOf(string(text))}, nil
	}
	var list []struct {
		Title string `json:"title"`
		Body  string `json:"body"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, corrupt(path, "is not a list of documents like {\"title\": …, \"body\": …}: %s",
			strings.ReplaceAll(err.Error(), "\n", " "))
	}
	var texts [][]string
	for _, d := range list {
		if d.Body != "" {
			texts = append(texts, wordsOf(d.Title+"\n"+d.Body))
		}
	}
	return texts, nil
}

func readFile(path string) ([]byte, error) {
	if info, err := os.Stat(path); err == nil && info.Size() > maxTextBytes {
		return nil, corrupt(path, "has %d MiB; a document has at most %d", info.Size()>>20, maxTextBytes>>20)
	}
	text, err := disk.ReadRegular(path, maxTextBytes)
	if err != nil {
		return nil, &FileError{Path: path, Problem: "cannot be read: " + err.Error(), Kind: err}
	}
	if slices.Contains(text, 0) {
		return nil, corrupt(path, "is not a text file: it contains zero bytes")
	}
	return text, nil
}

func wordsOf(text string) []string {
	words := strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return !unicode.IsLetter(r) })
	return slices.DeleteFunc(words, func(w string) bool {
		return len(w) < minLetters || len(w) > maxLetters || stopWords[w]
	})
}

// stopWords are English words that do not indicate the subject of a text.
var stopWords = wordSet(strings.Fields(`
about above after again all also and any are because been before being below between both but can cannot could did
does doing down during each ever every few for from further get had has have having her here hers herself him himself
his how however into its itself just let like may might more most much must myself nor not now off once one only other
our ours out over own said same say says shall she should since some such than that the their theirs them themselves
then there these they this those though through too under until upon very was well were what when where whether which
while who whom why will with within without would yet you your yours yourself don didn doesn isn wasn aren won ain`))
