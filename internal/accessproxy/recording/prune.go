package recording

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"
)

// reserve counts n more bytes, and makes room for them.
func (d *Dir) reserve(n int64) error {
	d.mu.Lock()
	fits := d.used+n < d.cfg.MaxBytes
	if fits {
		d.used += n
	}
	d.mu.Unlock()
	if fits {
		return nil
	}
	if err := d.prune(n, 0); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.used+n >= d.cfg.MaxBytes {
		return ErrFull
	}
	d.used += n
	return nil
}

// reserveOne makes room for one more recording.
func (d *Dir) reserveOne() error {
	fits := func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.held < d.cfg.MaxCount
	}
	if fits() {
		return nil
	}
	if err := d.prune(0, 1); err != nil {
		return err
	}
	if !fits() {
		return ErrFull
	}
	return nil
}

// Prune deletes recordings that are older than MaxAge, and the oldest ones if there are more than MaxCount or all are larger than MaxBytes.
// It keeps those that are younger than Keep or being written.
func (d *Dir) Prune() error { return d.prune(0, 0) }

// A stored recording is one that is not being written.
type stored struct {
	id, name string // name is that of its file, "" if only its hash is left
	size     int64
	at       time.Time
}

// prune is Prune, and makes room for n more bytes, if n > 0, and a tenth of MaxBytes, or for one more recording and a tenth of MaxCount.
func (d *Dir) prune(n int64, one int) error {
	most, count := d.cfg.MaxBytes-n, d.cfg.MaxCount
	if n > 0 {
		most -= d.cfg.MaxBytes / 10
	}
	if one > 0 {
		count -= max(d.cfg.MaxCount/10, 1)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	files, used, held, err := d.scan()
	if err != nil {
		return err
	}
	now := d.cfg.Now()
	for _, f := range files {
		age := now.Sub(f.at)
		expired := d.cfg.MaxAge > 0 && age > d.cfg.MaxAge
		full := used >= most || held > count
		if f.name != "" && !expired && (!full || age < d.cfg.Keep) {
			continue
		}
		if f.name != "" {
			if err := d.root.Remove(f.name); err != nil {
				return fmt.Errorf("delete an old recording: %w", withoutPath(err))
			}
			held--
		}
		d.root.Remove(f.id + suffixSum) // the next call tries again
		used -= f.size
	}
	d.used, d.held = used, held
	return nil
}

// scan returns the recordings that are not being written, oldest first, and the size and the number of all. The caller must hold d.mu.
func (d *Dir) scan() (files []stored, used int64, held int, err error) {
	entries, err := fs.ReadDir(d.root.FS(), ".")
	if err != nil {
		return nil, 0, 0, fmt.Errorf("list the recordings: %w", withoutPath(err))
	}
	known := map[string]bool{}
	var sums []string
	for _, e := range entries {
		id, suffix := splitName(e.Name())
		info, err := e.Info()
		if id == "" || err != nil || !info.Mode().IsRegular() {
			continue
		}
		if suffix == suffixSum {
			sums = append(sums, id)
			continue
		}
		used, held, known[id] = used+info.Size(), held+1, true
		if d.live[id] == nil {
			files = append(files, stored{id, e.Name(), info.Size(), info.ModTime()})
		}
	}
	slices.SortFunc(files, func(a, b stored) int { return a.at.Compare(b.at) })
	for _, id := range sums {
		if !known[id] {
			files = append(files, stored{id: id})
		}
	}
	return files, used, held, nil
}

// splitName returns the id and the suffix of a file's name, or "" if it is none of ours.
func splitName(name string) (id, suffix string) {
	for _, suffix := range []string{suffixPart, suffixCast, suffixSum} {
		if id, ok := strings.CutSuffix(name, suffix); ok && idForm.MatchString(id) {
			return id, suffix
		}
	}
	return "", ""
}

// DirStats are figures of a Dir, for metrics.
type DirStats struct {
	Bytes    int64 // of all recordings
	MaxBytes int64
	Count    int // recordings, with those that are being written
	Live     int // recordings that are being written
}

// Stats returns the figures of now.
func (d *Dir) Stats() DirStats {
	d.mu.Lock()
	defer d.mu.Unlock()
	return DirStats{Bytes: d.used, MaxBytes: d.cfg.MaxBytes, Count: d.held, Live: len(d.live)}
}

// Check returns why the directory cannot take a recording now, or nil.
func (d *Dir) Check() error {
	const probe = ".check"
	if err := errors.Join(d.reserve(0), d.reserveOne()); err != nil {
		return err
	}
	f, err := d.root.OpenFile(probe, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return withoutPath(err)
	}
	_, err = f.WriteString("a recorder checks that it can write\n")
	return withoutPath(errors.Join(err, f.Close(), d.root.Remove(probe)))
}
