package report

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/perdure/perdure/internal/data/disk"
)

// studyFile is the file of a study, two directories above each run: STUDY/CELL/seed-N.
const studyFile = "study.json"

// maxStudyBytes limits the size of a study file, in bytes.
const maxStudyBytes = 256 << 20

// studyInfo is the part of a study.json that a page needs.
type studyInfo struct {
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

// failuresSetting is the setting that names the failure plan of a study's run. The faults of a plan differ between
// seeds, so they cannot distinguish groups.
const failuresSetting = "failures"

// studiesOf finds the studies that runs belong to, and replaces the faults of each run by its failure plan. If a study
// cannot be read, it is reported and its runs are grouped by their own settings.
func studiesOf(trials []*trial) (found []*studyInfo, problems []string) {
	read := map[string]*studyInfo{} // by directory; nil if there is none
	for _, t := range trials {
		cell := filepath.Dir(t.Folder)
		dir := filepath.Dir(cell)
		s, known := read[dir]
		if !known {
			b, err := disk.ReadRegular(filepath.Join(dir, studyFile), maxStudyBytes)
			if err == nil {
				s = &studyInfo{}
				if err := json.Unmarshal(b, s); err != nil {
					s = nil
					problems = append(problems, fmt.Sprintf("%s: %v; its runs are grouped by their own settings",
						filepath.Join(dir, studyFile), err))
				} else {
					found = append(found, s)
				}
			}
			read[dir] = s
		}
		if s == nil {
			continue
		}
		for _, c := range s.Cells {
			if c.Name == filepath.Base(cell) {
				delete(t.settings, "faults")
				t.settings[failuresSetting] = c.Failures
			}
		}
	}
	return found, problems
}

// addStudies adds information about the studies to the page.
func (p *Page) addStudies(studies []*studyInfo) {
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
			p.Notes = append(p.Notes, fmt.Sprintf("The study %s was only run with --quick.", s.Name))
		}
	}
	p.Facts = append(p.Facts, machines...)
	if len(studies) == 1 {
		p.Title, p.Question = "Perdure: the study "+studies[0].Name, studies[0].Question
	}
}
