package report

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/perdure/perdure/internal/data/disk"
)

// studyFile says what a study's runs are of, two folders above each: STUDY/CELL/seed-N.
const studyFile = "study.json"

// mostStudy bounds what is read of one, in bytes.
const mostStudy = 256 << 20

// aStudy is what a page needs of a study.json.
type aStudy struct {
	Name     string `json:"name"`
	Question string `json:"question"`
	Quick    bool   `json:"quick"`
	Machine  struct {
		Cores int    `json:"cores"`
		CPU   string `json:"cpu"`
	} `json:"machine"`
	Cells []struct {
		Name     string `json:"name"`
		Failures string `json:"failures"`
	} `json:"cells"`
}

// planned is the setting of a study's run that names its plan of failures. The faults that the plan comes to
// are other ones for each seed, so that they tell no groups apart.
const planned = "failures"

// studiesOf finds the studies that runs are of, and gives each run its plan of failures in place of the
// faults. What cannot be read of a study is told; its runs are grouped by their own settings then.
func studiesOf(trials []*trial) (found []*aStudy, problems []string) {
	read := map[string]*aStudy{} // by folder; nil: there is none
	for _, t := range trials {
		cell := filepath.Dir(t.Folder)
		folder := filepath.Dir(cell)
		s, known := read[folder]
		if !known {
			b, err := disk.ReadRegular(filepath.Join(folder, studyFile), mostStudy)
			if err == nil {
				s = &aStudy{}
				if err := json.Unmarshal(b, s); err != nil {
					s = nil
					problems = append(problems, fmt.Sprintf("%s: %v; its runs are grouped by their own settings",
						filepath.Join(folder, studyFile), err))
				} else {
					found = append(found, s)
				}
			}
			read[folder] = s
		}
		if s == nil {
			continue
		}
		for _, c := range s.Cells {
			if c.Name == filepath.Base(cell) {
				delete(t.flat, "faults")
				t.flat[planned] = c.Failures
			}
		}
	}
	return found, problems
}

// tell writes what studies say onto the page.
func (p *Page) tell(studies []*aStudy) {
	var machines []string
	for _, s := range studies {
		if m := s.Machine; m.Cores > 0 {
			text := fmt.Sprintf("on %s, %s", plural(float64(m.Cores), "core"), m.CPU)
			if m.CPU == "" {
				text = "on " + plural(float64(m.Cores), "core")
			}
			if !slices.Contains(machines, text) {
				machines = append(machines, text)
			}
		}
		if s.Quick {
			p.Notes = append(p.Notes, fmt.Sprintf("The study %s was only tried out, with --quick.", s.Name))
		}
	}
	p.Facts = append(p.Facts, machines...)
	if len(studies) == 1 {
		p.Title, p.Question = "Perdure: the study "+studies[0].Name, studies[0].Question
	}
}
