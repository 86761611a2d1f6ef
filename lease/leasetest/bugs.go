package leasetest

// bug is a mistake that a bucket is made to make, so that a test can show that it would be noticed.
type bug int

const (
	noBug bug = iota
	settleBeforeRefill
	endBeforeRefill
	noFence
	ownTTL
	lentNotRefilled
	refillByNewLimit
	lossIgnored
	largestForgotten
)

// settleEarly is the mistake of settling before the refill: room that was taken until now is then filled as if it had
// been free all the time.
func (c *call) settleEarly() {
	e, ok := c.state.Entries[c.req.Lease.ID]
	if !ok || c.req.Lease.Seq <= e.Seq {
		return
	}
	e.Used += max(0, min(c.req.Lease.Used-e.Used, e.Outstanding()))
	c.state.Entries[c.req.Lease.ID] = e
	c.changed = true
}

// tally counts the tokens that have moved, in all.
type tally struct {
	lent     int64 // granted to leases
	found    int64 // written down for leases that were lost, less what was known of them
	used     int64 // reported as used
	returned int64 // given back
	expired  int64 // outstanding when their lease ended

	credited int64 // raised by credits
	charged  int64 // taken by debits from what was there, debts excluded
}
