package coordinator

// maxStandbys limits how many standby processes are remembered. Their names come from the peers, so the number could
// otherwise grow without bound.
const maxStandbys = 4096

// standbys remembers the processes that wait for a free slot or server index, so that each is logged once. The zero
// value is empty.
type standbys struct{ seen map[string]struct{} }

// isNew reports whether a process is on standby for the first time. Beyond maxStandbys processes, all are forgotten and
// count as new again.
func (s *standbys) isNew(process string) bool {
	if _, ok := s.seen[process]; ok {
		return false
	}
	if s.seen == nil || len(s.seen) >= maxStandbys {
		s.seen = map[string]struct{}{}
	}
	s.seen[process] = struct{}{}
	return true
}
