package control

import (
	"fmt"

	"github.com/perdure/perdure"
	controlv1 "github.com/perdure/perdure/internal/proc/control/v1"
)

// The functions of this file translate between plain Go values and the
// generated ones, field by field. A test fills every field and fails when one
// is forgotten.

func statusToProto(s Status) *controlv1.StatusResponse {
	p := &controlv1.StatusResponse{
		Job:             s.Job,
		Workload:        s.Workload,
		RunDir:          s.RunDir,
		Generation:      uint64(s.Generation),
		Clock:           int64(s.Clock),
		End:             int64(s.End),
		State:           string(s.State),
		Loss:            s.Loss,
		Accuracy:        s.Accuracy,
		ClocksPerSecond: s.ClocksPerSecond,
		BytesPushed:     s.BytesPushed,
		BytesPulled:     s.BytesPulled,
		UpdatesLost:     s.UpdatesLost,
		LastEvent:       s.LastEvent,
		Recovery:        s.Recovery.String(),
		NoReplace:       s.NoReplace,
		Coordinator:     s.Coordinator,
	}
	if a := s.Saving; a != nil {
		p.Saving = &controlv1.Saving{
			IntervalSeconds: a.Interval, Why: a.Why, Failures: a.Failures, RanSeconds: a.Ran, Rows: rowsToProto(a.Rows),
		}
	}
	if w := s.RegistryAway; w != nil {
		p.RegistryAway = &controlv1.Away{Seconds: w.Seconds, Why: w.Why}
	}
	for _, x := range s.Processes {
		p.Processes = append(p.Processes, &controlv1.Process{
			Role:        x.Role,
			Index:       int32(x.Index),
			Pid:         int64(x.PID),
			Incarnation: uint32(x.Incarnation),
			State:       string(x.State),
			Clock:       int64(x.Clock),
			Goroutines:  int32(x.Resources.Goroutines),
			HeapBytes:   x.Resources.HeapBytes,
			Draining:    x.Draining,
			From:        int64(x.Span.From),
			Until:       int64(x.Span.Until),
			KeptBytes:   x.KeptBytes,
			Outage:      outageToProto(x.Outage),
			Unread:      x.Unread,
			Host:        x.Host,
			Shards:      int32(x.Shards),
			Bytes:       x.Bytes,
			Drained:     uint32(x.Drained),
		})
	}
	return p
}

func outageToProto(o *perdure.WorkerOutage) *controlv1.Outage {
	if o == nil {
		return nil
	}
	p := &controlv1.Outage{Seconds: o.Seconds, QueuedBytes: o.Bytes}
	for _, s := range o.Shards {
		p.Shards = append(p.Shards, int32(s))
	}
	return p
}

func outageFromProto(p *controlv1.Outage) *perdure.WorkerOutage {
	if p == nil {
		return nil
	}
	o := &perdure.WorkerOutage{Seconds: p.Seconds, Bytes: p.QueuedBytes}
	for _, s := range p.Shards {
		o.Shards = append(o.Shards, perdure.ShardID(s))
	}
	return o
}

func statusFromProto(p *controlv1.StatusResponse) (s Status, err error) {
	s = Status{
		Job:             p.Job,
		Workload:        p.Workload,
		RunDir:          p.RunDir,
		Generation:      perdure.Generation(p.Generation),
		Clock:           perdure.Clock(p.Clock),
		End:             perdure.Clock(p.End),
		State:           State(p.State),
		Loss:            p.Loss,
		Accuracy:        p.Accuracy,
		ClocksPerSecond: p.ClocksPerSecond,
		BytesPushed:     p.BytesPushed,
		BytesPulled:     p.BytesPulled,
		UpdatesLost:     p.UpdatesLost,
		LastEvent:       p.LastEvent,
		NoReplace:       p.NoReplace,
		Coordinator:     p.Coordinator,
	}
	if a := p.Saving; a != nil {
		s.Saving = &perdure.Saving{
			Interval: a.IntervalSeconds, Why: a.Why, Failures: a.Failures, Ran: a.RanSeconds,
			Rows: rowsFromProto(a.Rows),
		}
	}
	if w := p.RegistryAway; w != nil {
		s.RegistryAway = &Away{Seconds: w.Seconds, Why: w.Why}
	}
	if p.Recovery != "" {
		if s.Recovery, err = perdure.ParseRecovery(p.Recovery); err != nil {
			return Status{}, fmt.Errorf("control: the coordinator's recovery strategy: %w", err)
		}
	}
	for _, x := range p.Processes {
		s.Processes = append(s.Processes, Process{
			Role:        x.Role,
			Index:       int(x.Index),
			PID:         int(x.Pid),
			Incarnation: perdure.Incarnation(x.Incarnation),
			State:       ProcessState(x.State),
			Clock:       perdure.Clock(x.Clock),
			Resources:   perdure.Resources{Goroutines: int(x.Goroutines), HeapBytes: x.HeapBytes},
			Draining:    x.Draining,
			Span:        perdure.Span{From: perdure.Clock(x.From), Until: perdure.Clock(x.Until)},
			KeptBytes:   x.KeptBytes,
			Outage:      outageFromProto(x.Outage),
			Unread:      x.Unread,
			Host:        x.Host,
			Shards:      int(x.Shards),
			Bytes:       x.Bytes,
			Drained:     perdure.Incarnation(x.Drained),
		})
	}
	return s, nil
}

func drainingToProto(d *Draining) *controlv1.DrainResponse {
	p := &controlv1.DrainResponse{}
	for _, x := range d.Places {
		p.Places = append(p.Places, &controlv1.Drained{
			Role: x.Role, Index: int32(x.Index), Incarnation: uint32(x.Incarnation),
		})
	}
	return p
}

func drainingFromProto(p *controlv1.DrainResponse) Draining {
	var d Draining
	for _, x := range p.Places {
		d.Places = append(d.Places, DrainedPlace{
			Role: x.Role, Index: int(x.Index), Incarnation: perdure.Incarnation(x.Incarnation),
		})
	}
	return d
}

func viewToProto(v perdure.View) *controlv1.ViewResponse {
	p := &controlv1.ViewResponse{
		Revision:   v.Revision,
		Generation: uint64(v.Generation),
		Cut:        int64(v.Cut),
		End:        int64(v.End),
		Durable:    int64(v.Durable),
		Named:      int64(v.Named),
		Done:       v.Done,
		Pause:      v.Pause,
		Tentative:  v.Tentative,
		Roster:     v.Roster,
	}
	for _, t := range v.Tables {
		p.Tables = append(p.Tables, tableToProto(t))
	}
	for _, s := range v.Shards {
		p.Shards = append(p.Shards, shardToProto(&s))
	}
	for _, s := range v.Slots {
		p.Slots = append(p.Slots, &controlv1.Slot{
			Incarnation: uint32(s.Incarnation),
			Decided:     s.Decided,
			Start:       int64(s.Start),
			Settled:     s.Settled,
			From:        int64(s.From),
			Until:       int64(s.Until),
			Left:        s.Left,
		})
	}
	return p
}

func viewFromProto(p *controlv1.ViewResponse) (perdure.View, error) {
	v := perdure.View{
		Revision:   p.Revision,
		Generation: perdure.Generation(p.Generation),
		Cut:        perdure.Clock(p.Cut),
		End:        perdure.Clock(p.End),
		Durable:    perdure.Clock(p.Durable),
		Named:      perdure.Clock(p.Named),
		Done:       p.Done,
		Pause:      p.Pause,
		Tentative:  p.Tentative,
		Roster:     p.Roster,
	}
	for _, x := range p.Tables {
		t, err := tableFromProto(x)
		if err != nil {
			return perdure.View{}, err
		}
		v.Tables = append(v.Tables, t)
	}
	for _, x := range p.Shards {
		v.Shards = append(v.Shards, shardFromProto(x))
	}
	for _, x := range p.Slots {
		v.Slots = append(v.Slots, perdure.SlotView{
			Incarnation: perdure.Incarnation(x.Incarnation),
			Decided:     x.Decided,
			Start:       perdure.Clock(x.Start),
			Settled:     x.Settled,
			Span:        perdure.Span{From: perdure.Clock(x.From), Until: perdure.Clock(x.Until)},
			Left:        x.Left,
		})
	}
	return v, nil
}

func shardToProto(s *perdure.ShardView) *controlv1.Shard {
	x := &controlv1.Shard{
		Server:      int32(s.Server),
		Incarnation: uint32(s.Incarnation),
		Addr:        s.Addr,
		Since:       s.Since,
		Epoch:       uint64(s.Epoch),
		Lost:        s.Lost,
		Yields:      s.Yields,
		Restored:    s.Restored,
	}
	for _, h := range s.Followers {
		x.Followers = append(x.Followers, holderToProto(h))
	}
	if s.Joining != nil {
		x.Joining = holderToProto(*s.Joining)
	}
	for _, c := range s.Base {
		x.Base = append(x.Base, int64(c))
	}
	for _, f := range s.Saved {
		x.Saved = append(x.Saved, &controlv1.SavedFile{File: f.File, Bytes: f.Bytes, Crc: f.CRC})
	}
	return x
}

func shardFromProto(x *controlv1.Shard) perdure.ShardView {
	s := perdure.ShardView{
		Holder: perdure.Holder{
			Server: int(x.Server), Incarnation: perdure.Incarnation(x.Incarnation), Addr: x.Addr,
			Since: x.Since,
		},
		Epoch:  perdure.Epoch(x.Epoch),
		Lost:   x.Lost,
		Yields: x.Yields, Restored: x.Restored,
	}
	for _, h := range x.Followers {
		s.Followers = append(s.Followers, holderFromProto(h))
	}
	if x.Joining != nil {
		h := holderFromProto(x.Joining)
		s.Joining = &h
	}
	for _, c := range x.Base {
		s.Base = append(s.Base, perdure.Clock(c))
	}
	for _, f := range x.Saved {
		s.Saved = append(s.Saved, perdure.SavedFile{File: f.File, Bytes: f.Bytes, CRC: f.Crc})
	}
	return s
}

func rowsToProto(r *perdure.RowSaving) *controlv1.RowSaving {
	if r == nil {
		return nil
	}
	return &controlv1.RowSaving{
		Bytes: r.Bytes, PausedSeconds: r.PausedSeconds, Restored: r.Restored, Initial: r.Initial,
		AgeClocks: r.AgeClocks, Oldest: int64(r.Oldest), PartlyLost: r.PartlyLost,
	}
}

func rowsFromProto(x *controlv1.RowSaving) *perdure.RowSaving {
	if x == nil {
		return nil
	}
	return &perdure.RowSaving{
		Bytes: x.Bytes, PausedSeconds: x.PausedSeconds, Restored: x.Restored, Initial: x.Initial,
		AgeClocks: x.AgeClocks, Oldest: perdure.Clock(x.Oldest), PartlyLost: x.PartlyLost,
	}
}

func holderToProto(h perdure.Holder) *controlv1.Holder {
	return &controlv1.Holder{Server: int32(h.Server), Incarnation: uint32(h.Incarnation), Addr: h.Addr, Since: h.Since}
}

func holderFromProto(p *controlv1.Holder) perdure.Holder {
	return perdure.Holder{
		Server: int(p.Server), Incarnation: perdure.Incarnation(p.Incarnation), Addr: p.Addr,
		Since: p.Since,
	}
}

func tableToProto(t perdure.TableSpec) *controlv1.Table {
	return &controlv1.Table{
		Name:        t.Name,
		Rows:        t.Rows,
		Dim:         int64(t.Dim),
		Rule:        ruleToProto(t.Rule),
		Init:        &controlv1.Init{Kind: string(t.Init.Kind), Scale: t.Init.Scale},
		Consistency: t.Consistency.String(),
		Sparse:      t.Sparse,
		Evict:       int64(t.Evict),
		NonFinite:   string(t.NonFinite),
		Distance:    string(t.Distance),
		Combine:     string(t.Combine),
		Whole:       t.Whole,
		Shard:       int32(t.Shard),
	}
}

func tableFromProto(p *controlv1.Table) (perdure.TableSpec, error) {
	consistency, err := perdure.ParseConsistency(p.Consistency)
	if err != nil {
		return perdure.TableSpec{}, fmt.Errorf("control: the coordinator's table %s: %w", p.Name, err)
	}
	return perdure.TableSpec{
		Name:        p.Name,
		Rows:        p.Rows,
		Dim:         int(p.Dim),
		Rule:        ruleFromProto(p.Rule),
		Init:        perdure.Init{Kind: perdure.InitKind(p.Init.GetKind()), Scale: p.Init.GetScale()},
		Consistency: consistency,
		Sparse:      p.Sparse,
		Evict:       perdure.Clock(p.Evict),
		NonFinite:   perdure.NonFinite(p.NonFinite),
		Distance:    perdure.Distance(p.Distance),
		Combine:     perdure.Combine(p.Combine),
		Whole:       p.Whole,
		Shard:       perdure.ShardID(p.Shard),
	}, nil
}

func ruleToProto(r perdure.Rule) *controlv1.Rule {
	return &controlv1.Rule{
		Kind:      string(r.Kind),
		Rate:      r.Rate,
		Schedule:  string(r.Schedule),
		Every:     int64(r.Every),
		Factor:    r.Factor,
		Momentum:  r.Momentum,
		Beta1:     r.Beta1,
		Beta2:     r.Beta2,
		Epsilon:   r.Epsilon,
		Beta:      r.Beta,
		L1:        r.L1,
		L2:        r.L2,
		Decay:     r.Decay,
		ClipValue: r.ClipValue,
		ClipNorm:  r.ClipNorm,
	}
}

// ruleFromProto takes nil too: a rule whose fields are all zero.
func ruleFromProto(p *controlv1.Rule) perdure.Rule {
	return perdure.Rule{
		Kind:      perdure.RuleKind(p.GetKind()),
		Rate:      p.GetRate(),
		Schedule:  perdure.Schedule(p.GetSchedule()),
		Every:     perdure.Clock(p.GetEvery()),
		Factor:    p.GetFactor(),
		Momentum:  p.GetMomentum(),
		Beta1:     p.GetBeta1(),
		Beta2:     p.GetBeta2(),
		Epsilon:   p.GetEpsilon(),
		Beta:      p.GetBeta(),
		L1:        p.GetL1(),
		L2:        p.GetL2(),
		Decay:     p.GetDecay(),
		ClipValue: p.GetClipValue(),
		ClipNorm:  p.GetClipNorm(),
	}
}
