package recording

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Names of files. A recording gets its second name when it has ended as it should.
const (
	suffixPart = ".part"
	suffixCast = ".cast"
	suffixSum  = ".sha256" // the hash of a recording that has ended as it should, in the form of sha256sum
)

const (
	syncEvery = 5 * time.Second
	maxList   = 1000
)

// ErrFull means that the directory has no room for a recording.
var ErrFull = errors.New("the directory of recordings is full")

// ErrTooLong means that a recording has reached its bound.
var ErrTooLong = errors.New("the recording is too long")

// DirConfig configures a Dir. Zero means the default.
type DirConfig struct {
	Path     string
	MaxBytes int64         // of all recordings; 10 GiB
	MaxOne   int64         // of one recording; 1 GiB
	MaxLive  int           // recordings at the same time; 1000
	MaxCount int           // recordings; 100,000
	MaxAge   time.Duration // older recordings are deleted; 0 keeps them
	Keep     time.Duration // younger recordings are never deleted to make room; 24 h
	Now      func() time.Time
	Done     func(Info) // called when a recording has ended; may be nil
}

// A Dir stores recordings in a directory: one file each, readable only by its owner. It is a Sink. It acknowledges what the operating
// system has taken, and calls fsync every 5 s and at the end of each recording. If a recording needs room, the Dir deletes the oldest
// ones, but none that is younger than Keep: otherwise a caller could delete the traces of an action by producing output. Then it is full,
// and required recordings fail.
type Dir struct {
	cfg  DirConfig
	root *os.Root

	mu   sync.Mutex
	live map[string]*file
	used int64 // bytes of all recordings
	held int   // number of recordings
}

// OpenDir opens a directory, which must exist. Only one process may use it.
func OpenDir(cfg DirConfig) (*Dir, error) {
	set := func(v *int64, to int64) {
		if *v == 0 {
			*v = to
		}
	}
	set(&cfg.MaxBytes, 10<<30)
	set(&cfg.MaxOne, 1<<30)
	set((*int64)(&cfg.Keep), int64(24*time.Hour))
	cfg.MaxLive, cfg.MaxCount = cmp.Or(cfg.MaxLive, 1000), cmp.Or(cfg.MaxCount, 100_000)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	root, err := os.OpenRoot(cfg.Path)
	if err != nil {
		return nil, fmt.Errorf("open the directory of recordings: %w", err)
	}
	d := &Dir{cfg: cfg, root: root, live: map[string]*file{}}
	if err := d.Prune(); err != nil {
		root.Close()
		return nil, err
	}
	return d, nil
}

// Close closes the directory. Recordings that have not ended stay incomplete.
func (d *Dir) Close() error { return d.root.Close() }

// Run deletes old recordings once an hour until ctx ends.
func (d *Dir) Run(ctx context.Context) error {
	tick := time.NewTicker(time.Hour)
	defer tick.Stop()
	for {
		if err := d.Prune(); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// A file is one recording while it is written.
type file struct {
	d     *Dir
	id    string
	f     *os.File
	acked func(int64)
	lost  func(error)

	mu      sync.Mutex
	sum     hash.Hash
	size    int64
	synced  time.Time
	over    bool
	problem error
}

// Start creates a file. It implements Sink.
func (d *Dir) Start(_ context.Context, id string, acked func(int64), lost func(error)) (Upload, error) {
	f, err := d.create(id, acked, lost)
	if err != nil {
		return nil, fmt.Errorf("start a recording: %w", err)
	}
	return f, nil
}

func (d *Dir) create(id string, acked func(int64), lost func(error)) (*file, error) {
	if !idForm.MatchString(id) {
		return nil, fmt.Errorf("%.60q is no id of a recording", id)
	}
	if err := errors.Join(d.reserve(0), d.reserveOne()); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.live) >= d.cfg.MaxLive {
		return nil, fmt.Errorf("there are already %d recordings at the same time", len(d.live))
	}
	if _, err := d.root.Lstat(id + suffixCast); err == nil {
		return nil, fmt.Errorf("a recording %s exists", id)
	}
	f, err := d.root.OpenFile(id+suffixPart, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, withoutPath(err)
	}
	w := &file{d: d, id: id, f: f, acked: acked, lost: lost, sum: sha256.New(), synced: d.cfg.Now()}
	d.live[id] = w
	d.held++
	return w, nil
}

// withoutPath returns the cause of an error of a file, which may go to another machine.
func withoutPath(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return ErrFull
	}
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		return p.Err
	}
	return err
}

// Write appends to the file and acknowledges it.
func (f *file) Write(p []byte) (int, error) {
	f.mu.Lock()
	err := f.write(p)
	size := f.size
	f.mu.Unlock()
	if err != nil {
		f.lost(err)
		return 0, err
	}
	f.acked(size)
	return len(p), nil
}

// write is Write. The caller must hold f.mu.
func (f *file) write(p []byte) error {
	switch {
	case f.over:
		return errors.New("write to a recording that has ended")
	case f.problem != nil:
		return f.problem
	case f.size+int64(len(p)) > f.d.cfg.MaxOne:
		f.problem = ErrTooLong
		return f.problem
	}
	if f.problem = f.d.reserve(int64(len(p))); f.problem != nil {
		return f.problem
	}
	n, err := f.f.Write(p)
	f.sum.Write(p[:n])
	f.size += int64(n)
	if now := f.d.cfg.Now(); err == nil && now.Sub(f.synced) >= syncEvery {
		f.synced = now
		err = f.f.Sync()
	}
	if err != nil {
		f.problem = fmt.Errorf("write a recording: %w", withoutPath(err))
	}
	return f.problem
}

// Close implements Upload.
func (f *file) Close(context.Context) error { return f.finish(true) }

// Abort implements Upload.
func (f *file) Abort() { f.finish(false) }

// finish ends the file. An empty one is removed: nothing was recorded.
func (f *file) finish(complete bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over {
		return f.problem
	}
	f.over = true
	err := f.problem
	if err == nil {
		err = withoutPath(f.f.Sync())
	}
	f.f.Close()
	info := Info{ID: f.id, Bytes: f.size, SHA256: hex.EncodeToString(f.sum.Sum(nil)), Modified: f.d.cfg.Now(), State: Incomplete}
	switch {
	case f.size == 0:
		err = errors.Join(err, f.d.root.Remove(f.id+suffixPart))
	case complete && err == nil:
		if err = f.d.publish(f.id, info.SHA256); err == nil {
			info.State = Complete
		}
	}
	f.d.mu.Lock()
	delete(f.d.live, f.id)
	if f.size == 0 {
		f.d.held--
	}
	f.d.mu.Unlock()
	if f.problem = err; f.d.cfg.Done != nil && f.size > 0 {
		f.d.cfg.Done(info)
	}
	return err
}

// A State says whether a recording has ended.
type State string

// The states.
const (
	Live       State = "live"
	Complete   State = "complete"
	Incomplete State = "incomplete" // the stream was cut, the recording was lost, or the process has died
)

// Info describes a recording.
type Info struct {
	ID       string    `json:"id"`
	State    State     `json:"state"`
	Bytes    int64     `json:"bytes"`
	Modified time.Time `json:"modified"`
	SHA256   string    `json:"sha256,omitempty"` // "" before the recording is complete
	Header   Header    `json:"header"`           // not for Done; zero if it cannot be read
}

// List returns up to limit recordings whose id is smaller than before, newest first. An empty before is after all. A limit of 0 or more
// than 1000 is 1000.
func (d *Dir) List(before string, limit int) ([]Info, error) {
	entries, err := fs.ReadDir(d.root.FS(), ".")
	if err != nil {
		return nil, fmt.Errorf("list the recordings: %w", err)
	}
	if limit <= 0 || limit > maxList {
		limit = maxList
	}
	list := []Info{}
	for _, e := range slices.Backward(entries) {
		id, suffix := splitName(e.Name())
		if id == "" || suffix == suffixSum || before != "" && id >= before {
			continue
		}
		if len(list) == limit {
			break
		}
		f, info, err := d.Open(id)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it was deleted meanwhile
		}
		if err != nil {
			return nil, err
		}
		f.Close()
		list = append(list, info)
	}
	return list, nil
}

// publish gives a recording that has ended its name. Its hash, in the form of sha256sum, is on the disk before.
func (d *Dir) publish(id, sum string) error {
	err := func() error {
		f, err := d.root.OpenFile(id+suffixSum, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		if err != nil {
			return err
		}
		_, err = f.WriteString(sum + "  " + id + suffixCast + "\n")
		return errors.Join(err, f.Sync(), f.Close())
	}()
	if err == nil {
		err = d.root.Rename(id+suffixPart, id+suffixCast)
	}
	if err == nil {
		var dir *os.File
		if dir, err = d.root.Open("."); err == nil {
			err = errors.Join(dir.Sync(), dir.Close())
		}
	}
	return withoutPath(err)
}

// readSum returns the hash of a recording that has ended, or "".
func (d *Dir) readSum(id string) string {
	f, err := d.root.Open(id + suffixSum)
	if err != nil {
		return ""
	}
	defer f.Close()
	b := make([]byte, hex.EncodedLen(sha256.Size))
	if _, err := io.ReadFull(f, b); err != nil {
		return ""
	}
	if _, err := hex.DecodeString(string(b)); err != nil {
		return ""
	}
	return string(b)
}

// Open opens a recording for replay. The error is fs.ErrNotExist if there is none.
func (d *Dir) Open(id string) (io.ReadSeekCloser, Info, error) {
	if !idForm.MatchString(id) {
		return nil, Info{}, fmt.Errorf("%.60q is no id of a recording: %w", id, fs.ErrNotExist)
	}
	info := Info{ID: id, State: Complete}
	f, err := d.root.Open(id + suffixCast)
	if errors.Is(err, fs.ErrNotExist) {
		info.State = Incomplete
		d.mu.Lock()
		if d.live[id] != nil {
			info.State = Live
		}
		d.mu.Unlock()
		f, err = d.root.Open(id + suffixPart)
	}
	if err != nil {
		return nil, Info{}, fmt.Errorf("open the recording %s: %w", id, err)
	}
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		f.Close()
		return nil, Info{}, fmt.Errorf("open the recording %s: %w", id, errors.Join(err, fs.ErrNotExist))
	}
	info.Bytes, info.Modified = st.Size(), st.ModTime()
	if info.State == Complete {
		info.SHA256 = d.readSum(id)
	}
	if line, err := bufio.NewReaderSize(io.LimitReader(f, maxHeader), maxHeader).ReadSlice('\n'); err == nil {
		info.Header, _ = ParseHeader(bytes.TrimSuffix(line, []byte("\n")))
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		f.Close()
		return nil, Info{}, fmt.Errorf("open the recording %s: %w", id, err)
	}
	return f, info, nil
}
