package settings

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/dataset"
	"github.com/perdure/perdure/internal/run/workload"
)

// WorkloadFlags holds a user's request to the workers of a built-in workload, as flags of perdure train. Empty or nil
// fields get the workload's defaults.
type WorkloadFlags struct {
	Until string `group:"job" main:"" placeholder:"GOAL"`
	Data  string `group:"training" main:"" placeholder:"PATH"`
	Init  string `group:"training" placeholder:"FILE"` // the model that the run starts with; "": none

	LR         *float64 `name:"lr" group:"training" placeholder:"RATE"`
	Batch      *int     `group:"training" placeholder:"N"`
	Rule       string   `group:"training" placeholder:"RULE"`
	Sparse     bool     `group:"training"`
	Combine    string   `group:"training" placeholder:"HOW"`
	Schedule   string   `group:"training" default:"const" placeholder:"NAME"`
	StepEvery  int64    `group:"training" default:"100" placeholder:"N"`
	StepFactor float64  `group:"training" default:"0.5" placeholder:"X"`
	EvalEvery  string   `group:"training" default:"10" placeholder:"N|TIME"`

	CacheMB   int      `name:"cache-mb" group:"consistency" default:"256" placeholder:"N"`
	RetainMB  int      `name:"retain-mb" group:"recovery" default:"512" placeholder:"N"`
	ComputeMs int      `group:"faults" default:"0" placeholder:"N"`
	Scale     []string `group:"job" placeholder:"SCALE" sep:"none"`

	// The settings of single workloads are flags of their commands.
	Factors MFFlags      `kong:"-"`
	Bowl    QuadFlags    `kong:"-"`
	Convex  SoftmaxFlags `kong:"-"`
	Topics  LDAFlags     `kong:"-"`
	Network CNNFlags     `kong:"-"`
}

// CNNFlags holds a user's settings of cnn, as flags of perdure train.
type CNNFlags struct {
	FinalReLU bool   `name:"final-relu" main:"" group:"cnn"`
	Partition string `main:"" group:"cnn" default:"row" placeholder:"row|layer"`
}

// SoftmaxFlags holds a user's settings of softmax, as flags of perdure train.
type SoftmaxFlags struct {
	L2        float64 `name:"l2" main:"" group:"softmax" default:"0" placeholder:"X"`
	FullBatch bool    `main:"" group:"softmax"`
}

// QuadFlags holds a user's settings of quadratic, as flags of perdure train.
type QuadFlags struct {
	Rows      *int     `main:"" group:"quadratic" placeholder:"N"`
	Dim       *int     `main:"" group:"quadratic" placeholder:"N"`
	Condition *float64 `main:"" group:"quadratic" placeholder:"K"`
	Noise     float64  `main:"" group:"quadratic" default:"0" placeholder:"X"`
}

// params returns the settings of a quadratic function.
func (b *QuadFlags) params(info workload.Info) workload.Quadratic {
	of := info.Bowl
	set(&of.Rows, b.Rows)
	set(&of.Dim, b.Dim)
	set(&of.Condition, b.Condition)
	of.Noise = b.Noise
	return of
}

// MFFlags holds a user's settings of mf, as flags of perdure train.
type MFFlags struct {
	Rank       *int     `main:"" group:"mf" placeholder:"N"`
	L2         *float64 `name:"l2" main:"" group:"mf" placeholder:"X"`
	Fraction   *float64 `name:"clock-fraction" main:"" group:"mf" placeholder:"X"`
	WholeUsers bool     `main:"" group:"mf"`
	Solver     string   `main:"" group:"mf" placeholder:"sgd|als"`
	Implicit   float64  `main:"" group:"mf" default:"0" placeholder:"X"`
}

// applyWorkload completes the settings from the user's request for a workload.
func (a *Flags) applyWorkload(s *Run) error {
	w, p := &a.Work, &s.Params
	info, err := a.info()
	if err != nil {
		return err
	}
	p.Batch, p.Sparse, p.FinalReLU, p.Factors = info.Batch, w.Sparse, w.Network.FinalReLU, w.factors(info)
	p.Bowl = w.Bowl.params(info)
	if p.Topics, err = w.Topics.model(info); err != nil {
		return err
	}
	if p.ByLayer, err = w.Network.byLayer(); err != nil {
		return err
	}
	if p.Convex = workload.SoftmaxParams(w.Convex); p.Convex.FullBatch {
		p.Batch = 0
	}
	set(&p.Batch, w.Batch)
	if p.Data, err = absolute(cmp.Or(w.Data, info.Data)); err != nil {
		return err
	}
	if p.Rule, err = w.rule(info); err != nil {
		return err
	}
	if p.Rule.Schedule != perdure.ScheduleStep && (a.Given["step-every"] || a.Given["step-factor"]) {
		return perdure.Usagef("--step-every and --step-factor apply only to --schedule step, but the schedule is %s; "+
			"leave them out", p.Rule.Schedule)
	}
	if p.Combine, err = perdure.ParseCombine(cmp.Or(w.Combine, "each")); err != nil {
		return fmt.Errorf("--combine: %w", err)
	}
	if s.Until, err = parseGoal(w.Until, a.Workload); err != nil {
		return err
	}
	if s.EvalEvery, s.EvalMs, err = parseEvalEvery(w.EvalEvery); err != nil {
		return err
	}
	if s.Until.Metric != "" && s.Until.Metric != OverTime && s.EvalEvery == 0 && s.EvalMs == 0 {
		return perdure.Usagef("--until needs --eval-every of at least 1")
	}
	s.ComputeMs, s.CacheMB, s.RetainMB, s.Scale = w.ComputeMs, w.CacheMB, w.RetainMB, w.Scale
	if s.CacheMB == 0 && !a.Given["cache-mb"] {
		s.CacheMB = DefaultCacheMB
	}
	if s.RetainMB == 0 && !a.Given["retain-mb"] {
		s.RetainMB = DefaultRetainMB
	}
	return nil
}

// info returns the workload's defaults for the chosen solver.
func (a *Flags) info() (workload.Info, error) {
	info, err := workload.Find(a.Workload)
	if err != nil {
		return info, err
	}
	return info.Solve(a.Work.Factors.Solver)
}

// byLayer reports whether the model is partitioned by layer.
func (a *CNNFlags) byLayer() (bool, error) {
	switch a.Partition {
	case "", "row":
		return false, nil
	case "layer":
		return true, nil
	}
	return false, perdure.Usagef("invalid --partition %s; choose row or layer", a.Partition)
}

// rule returns the update rule.
func (w *WorkloadFlags) rule(info workload.Info) (perdure.Rule, error) {
	r, err := perdure.ParseRule(cmp.Or(w.Rule, string(info.Rule), string(perdure.RuleSGD)))
	if err != nil {
		return r, err
	}
	r.Rate, r.Schedule = info.Rates[r.Kind], perdure.Schedule(cmp.Or(w.Schedule, string(perdure.ScheduleConst)))
	if w.LR != nil {
		if r.Rate = *w.LR; r.Rate == 0 {
			return r, perdure.Usagef("invalid learning rate 0; choose one above 0, or leave --lr out")
		}
	}
	if r.Schedule == perdure.ScheduleStep {
		r.Every, r.Factor = perdure.Clock(w.StepEvery), w.StepFactor
	}
	return r, nil
}

// factors returns the settings of a matrix factorisation.
func (w *WorkloadFlags) factors(info workload.Info) workload.Factors {
	f := info.Factors
	set(&f.Rank, w.Factors.Rank)
	set(&f.L2, w.Factors.L2)
	set(&f.ClockFraction, w.Factors.Fraction)
	f.WholeUsers, f.Implicit = w.Factors.WholeUsers, w.Factors.Implicit
	return f
}

// LDAFlags holds a user's settings of lda, as flags of perdure train.
type LDAFlags struct {
	Topics    *int     `main:"" group:"lda" placeholder:"N"`
	Alpha     *float64 `main:"" group:"lda" placeholder:"X"`
	Beta      *float64 `main:"" group:"lda" placeholder:"X"`
	Fraction  *float64 `name:"clock-fraction" main:"" group:"lda" placeholder:"X"`
	Rebuild   bool     `main:"" group:"lda"`
	DocTopics string   `group:"lda" default:"slot" placeholder:"slot|table"`
}

// model returns the settings of a topic model.
func (a *LDAFlags) model(info workload.Info) (workload.TopicModel, error) {
	t := info.Topics
	set(&t.Topics, a.Topics)
	set(&t.Alpha, a.Alpha)
	set(&t.Beta, a.Beta)
	set(&t.ClockFraction, a.Fraction)
	t.Rebuild, t.OnTable = a.Rebuild, a.DocTopics == "table"
	if !t.OnTable && a.DocTopics != "" && a.DocTopics != "slot" {
		return t, perdure.Usagef("invalid --doc-topics %s; choose slot or table", a.DocTopics)
	}
	return t, nil
}

// set copies *asked to *to unless asked is nil.
func set[T any](to, asked *T) {
	if asked != nil {
		*to = *asked
	}
}

// absolute makes a path of data absolute, so that every process understands it in any working directory.
func absolute(path string) (string, error) {
	if path == "" || strings.HasPrefix(path, dataset.SyntheticPrefix) {
		return path, nil
	}
	return filepath.Abs(path)
}
