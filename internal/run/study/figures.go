package study

import (
	"math"

	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"

	"github.com/perdure/perdure/internal/run/plot"
	"github.com/perdure/perdure/internal/run/rundir"
)

// Figures lists the figures of a trial. A trial lacks those that its run did not record.
var Figures = []string{
	"accuracy", "rmse", "loss", "seconds", "clocks", "faults", "lost", "redone", "away", "goal-seconds",
	"cost", "cost-spot", "cost-month",
}

// figuresOf returns the figures of a completed run.
func figuresOf(s *rundir.Summary) map[string]float64 {
	f := map[string]float64{"seconds": s.WallSeconds, "clocks": float64(s.Clocks)}
	put := func(name string, v *float64) {
		if v != nil {
			f[name] = *v
		}
	}
	put("accuracy", s.TestAccuracy)
	put("rmse", s.TestRMSE)
	put("loss", s.TestLoss)
	if s.UpdatesLost != nil {
		f["lost"] = float64(*s.UpdatesLost)
	}
	if s.ClocksRedone != nil {
		f["redone"] = float64(*s.ClocksRedone)
	}
	f["faults"], f["away"] = float64(len(s.Failures)), outageSeconds(s)
	if s.Goal != nil {
		f["goal-seconds"] = s.Goal.Seconds
	}
	return f
}

// outageSeconds returns how long processes were missing, in seconds: for each failure the time until its target served
// again, or the time until the end if it did not.
func outageSeconds(s *rundir.Summary) (seconds float64) {
	for _, f := range s.Failures {
		switch {
		case f.ServingAgainAfterMs != nil:
			seconds += *f.ServingAgainAfterMs / 1000
		case f.DetectedAfterMs != nil:
			seconds += max(0, s.WallSeconds-f.AtSeconds)
		}
	}
	return seconds
}

// Figure summarizes a figure over the trials of a cell.
type Figure struct {
	Trials int     `json:"trials"`
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
	Mean   float64 `json:"mean"`
	// HalfWidth is half of the 95% interval of the mean (Student's t); null for a single trial.
	HalfWidth *float64 `json:"within"`
}

// figureOf summarizes values, of which there must be at least one.
func figureOf(values []float64) Figure {
	s := plot.SpreadOf(values)
	f := Figure{Trials: len(values), Median: s.Mid, Low: s.Low, High: s.High, Mean: stat.Mean(values, nil)}
	if n := float64(len(values)); n > 1 {
		t := distuv.StudentsT{Mu: 0, Sigma: 1, Nu: n - 1}.Quantile(.975)
		f.HalfWidth = new(t * stat.StdDev(values, nil) / math.Sqrt(n))
	}
	return f
}
