package planemetrics

// What the tests look into: they are of a package of their own, because the client
// of a Prometheus imports this one.
var (
	Quote     = quote
	OneOf     = oneOf
	Questions = questions
	Windows   = windows
)

// Shared is how many answers are kept.
func (d *Desk) Shared() int {
	d.shared.mu.Lock()
	defer d.shared.mu.Unlock()
	return len(d.shared.all)
}
