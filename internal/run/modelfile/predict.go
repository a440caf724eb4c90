package modelfile

import (
	"bufio"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/dataset"
	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/internal/run/workload"
	"github.com/perdure/perdure/internal/run/workload/cnn"
	"github.com/perdure/perdure/internal/run/workload/logreg"
	"github.com/perdure/perdure/internal/run/workload/mf"
)

// Prediction holds the flags of perdure predict.
type Prediction struct {
	Model string   `arg:"" help:"@predict_model" type:"path"`
	Users []string `name:"user" help:"@predict_user" placeholder:"NAME" sep:"none"`
	Best  *int     `help:"mf: number of items to print for each user (default 10)." placeholder:"N"` // nil: defaultBest
	Known string   `help:"@predict_known" placeholder:"FILE" type:"path"`
	Pairs string   `help:"mf: a file of lines user,item; print a prediction for each." placeholder:"FILE" type:"path"`
	Data  string   `help:"@predict_data" placeholder:"PATH"` // "": the built-in examples
	JSON  bool     `name:"json" help:"Print JSON, for programs."`
}

// defaultBest is the default number of items that are predicted for a user.
const defaultBest = 10

// Predict writes predictions to out. It writes the accuracy to told if the correct answers are known.
func Predict(ctx context.Context, out, sent io.Writer, a Prediction) error {
	m, err := Open(a.Model)
	if err != nil {
		return fmt.Errorf("predict: %w", err)
	}
	if wrong := m.Diverged(); wrong != "" {
		return perdure.Usagef("predict: %s: %s", a.Model, wrong)
	}
	name := m.Meta["workload"]
	aboutItems := len(a.Users) > 0 || a.Pairs != "" || a.Known != "" || a.Best != nil
	w := &writer{out: out, json: a.JSON}
	switch {
	case name == mf.Name && a.Data != "":
		return perdure.Usagef("predict: an mf model makes predictions for --user or --pairs; remove --data")
	case name == mf.Name:
		err = ratings(w, m, &a)
	case name == "":
		return perdure.Usagef("predict: %s does not name its workload", a.Model)
	case aboutItems:
		return perdure.Usagef("predict: --user, --best, --known and --pairs apply only to mf models, but this "+
			"model's workload is %.40q", name)
	case !classifies(name):
		return perdure.Usagef("predict: the model's workload, %.40q, cannot make predictions", name)
	default:
		err = classes(ctx, w, sent, m, &a)
	}
	return errors.Join(err, w.end(err))
}

// classifies reports whether the named workload exists and predicts classes of examples.
func classifies(name string) bool {
	info, err := workload.Find(name)
	return err == nil && slices.Contains(info.Measures, "accuracy")
}

// ratings predicts users' ratings of items.
func ratings(w *writer, m *Model, a *Prediction) error {
	if len(a.Users) == 0 && a.Pairs == "" {
		return perdure.Usagef("predict: choose --user NAME for the best items of a user, or --pairs FILE")
	}
	if len(a.Users) == 0 && (a.Best != nil || a.Known != "") {
		return perdure.Usagef("predict: --best and --known apply only to the items of --user NAME; remove them")
	}
	most := defaultBest
	if a.Best != nil {
		most = *a.Best
	}
	if most < 1 {
		return perdure.Usagef("predict: invalid --best %d; choose at least 1", most)
	}
	p, err := mf.NewPredictor(m.Tensors, m.Meta)
	if err != nil {
		return fmt.Errorf("predict: %s: %w", a.Model, err)
	}
	w.head("user", "item", "prediction")
	known := map[string]map[string]bool{}
	for _, user := range a.Users {
		known[user] = map[string]bool{}
	}
	if a.Known != "" {
		if err := dataset.ReadPairs(a.Known, func(user, item string) error {
			if of := known[user]; of != nil {
				of[item] = true
			}
			return nil
		}); err != nil {
			return err
		}
	}
	for _, user := range a.Users {
		best, err := p.Best(user, most, func(item string) bool { return known[user][item] })
		if err != nil {
			return fmt.Errorf("predict: %w", err)
		}
		for _, pick := range best {
			w.row(user, pick.Item, pick.Rating)
		}
	}
	if a.Pairs == "" {
		return nil
	}
	return dataset.ReadPairs(a.Pairs, func(user, item string) error {
		r, err := p.Rating(user, item)
		if err == nil {
			w.row(user, item, r)
		}
		return err
	})
}

// classes predicts the classes of examples.
func classes(ctx context.Context, w *writer, sent io.Writer, m *Model, a *Prediction) error {
	name := m.Meta["workload"]
	var labels []string
	if m.Meta["classes"] != "" {
		labels = strings.Split(m.Meta["classes"], "\n")
	}
	opened, err := workload.New(name, workload.Params{
		Slots: 1, Batch: 1, Data: a.Data, Rule: perdure.Rule{Kind: perdure.RuleSGD, Rate: 1}, // not used
		Trained: m.Meta,
	})
	if err != nil {
		return err
	}
	c := opened.(workload.Classifier) // as classifies has checked
	t, err := m.Tables(opened.Tables())
	if err != nil {
		return fmt.Errorf("predict: %s does not fit the data %s: %w", a.Model, opened.Describe().Data, err)
	}
	constants := opened.Constants()
	for _, key := range slices.Sorted(maps.Keys(constants)) {
		if m.Meta[key] == "" && constants[key] != "" {
			fmt.Fprintf(sent, "%s lacks %s, because it was exported without its run: %s\n", a.Model, key,
				withoutKey[key])
		}
	}
	w.head("example", "class", "probability", "label")
	examples, known, right := 0, 0, 0
	if err := c.Classify(ctx, t, func(scores []float32, label uint8) {
		class, probability := likeliest(scores)
		w.row(examples, className(class, labels), probability, className(int(label), labels))
		examples++
		if int(label) < len(scores) {
			known++
		}
		if class == int(label) {
			right++
		}
	}); err != nil {
		return err
	}
	if known > 0 {
		examples := "examples"
		if opened.Describe().Marked || dataset.IsSynthetic(a.Data) {
			examples = "synthetic examples"
		}
		fmt.Fprintf(sent, "accuracy %.4f: %d of %d %s are classified correctly\n",
			float64(right)/float64(known), right, known, examples)
	}
	return nil
}

// withoutKey describes the replacement for each constant that a model file may lack.
var withoutKey = map[string]string{
	dataset.MeansKey:      "computed from the training part of the data",
	dataset.DeviationsKey: "computed from the training part of the data",
	cnn.FinalReLUKey:      "assumed to be false",
	logreg.HashedKey:      "determined by the first feature of the data",
}

// className returns the label of a class, or its number without labels; "" if it is unknown.
func className(class int, labels []string) any {
	switch {
	case labels == nil:
		return class
	case class < len(labels):
		return labels[class]
	}
	return ""
}

// likeliest returns the class with the highest score and its probability.
func likeliest(scores []float32) (class int, probability float64) {
	most := slices.Max(scores)
	sum := 0.0
	for _, s := range scores {
		sum += math.Exp(float64(s - most))
	}
	return slices.Index(scores, most), 1 / sum
}

// writer writes lines of CSV, or a JSON list with the same content.
type writer struct {
	out    io.Writer
	json   bool
	keys   []string
	csv    *csv.Writer
	buffer *bufio.Writer
	list   []map[string]any
}

func (w *writer) head(keys ...string) {
	w.keys, w.list = keys, []map[string]any{}
	if !w.json {
		w.buffer = bufio.NewWriter(w.out)
		w.csv = csv.NewWriter(w.buffer)
		_ = w.csv.Write(keys) // end reports the error
	}
}

func (w *writer) row(values ...any) {
	if w.json {
		of := map[string]any{}
		for i, v := range values {
			of[w.keys[i]] = v
		}
		w.list = append(w.list, of)
		return
	}
	texts := make([]string, len(values))
	for i, v := range values {
		if f, is := v.(float64); is {
			texts[i] = strconv.FormatFloat(f, 'g', 6, 64)
		} else {
			texts[i] = fmt.Sprint(v)
		}
	}
	_ = w.csv.Write(texts) // end reports the error
}

// end writes the remaining output unless there was an error.
func (w *writer) end(mistake error) error {
	switch {
	case w.keys == nil || mistake != nil:
		return nil
	case w.json:
		return humanize.JSON(w.out, w.list)
	}
	w.csv.Flush()
	return errors.Join(w.csv.Error(), w.buffer.Flush())
}
