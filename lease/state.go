package lease

// State is what a process knows about its lease of one key. It is not safe for concurrent use; the zero State holds no
// lease.
//
// The tokens themselves are spent elsewhere, concurrently. State keeps only their sum: every token that came in under
// this ID is either held or used, so Used is what came in less what is held at the moment of asking. It can be too low,
// when a token is spent right after, but never too high; too high, and the bucket would refill what is still held.
type State struct {
	id  string
	seq int64
	in  int64 // tokens received and not given up: used + held
	// epoch and expiry are echoed to the bucket, which so can tell a lost lease from one that ended.
	epoch, expiry int64
}

// Open reports whether the state has an ID.
func (s *State) Open() bool { return s.id != "" }

// Begin starts a new lease under an ID that was never used. The old one, if any, is left to expire.
func (s *State) Begin(id string) { *s = State{id: id} }

// End forgets the lease. Its tokens must have been thrown away.
func (s *State) End() { *s = State{} }

// Seq is the number of the last request, 0 before the first. While it stays the same, nothing has been reported.
func (s *State) Seq() int64 { return s.seq }

// Used is how many tokens of the lease are gone in all, when held are held now.
func (s *State) Used(held int64) int64 { return s.in - held }

// GiveUp notes that n held tokens were taken out of circulation. It has to happen before the request that returns
// them is sent: a token that is on its way back must not be spent.
func (s *State) GiveUp(n int64) { s.in -= n }

// Ask fills in the next request: held tokens are held now, want are to be held after the call.
func (s *State) Ask(h *Holding, held, want int64) {
	s.seq++
	h.ID, h.Seq = s.id, s.seq
	h.Used, h.Held, h.Want = s.Used(held), held, want
	h.Epoch, h.Expiry = s.epoch, s.expiry
}

// Accept takes the grant of the newest request and returns how many tokens have come in. The grant says how many were
// granted in all, so one that was lost on the way is made up for by the next. With Stale or Reset the lease is void:
// the caller must throw its tokens away and Begin anew.
func (s *State) Accept(g *Grant) (in int64) {
	in = g.Granted - s.in
	s.in = g.Granted
	// A bucket that has written nothing down about the lease will not know it the next time either. If it were told of
	// an epoch then, it would take the lease for one that has ended.
	if g.Expiry != 0 {
		s.epoch, s.expiry = g.Epoch, g.Expiry
	}
	return in
}
