package planemetrics

// Exports for the tests, which are in an external package because promquery imports this one.
var (
	Quote     = quote
	OneOf     = oneOf
	Questions = questions
	Windows   = windows
)

// Shared returns the number of cached results.
func (d *Desk) Shared() int {
	d.shared.mu.Lock()
	defer d.shared.mu.Unlock()
	return len(d.shared.all)
}
