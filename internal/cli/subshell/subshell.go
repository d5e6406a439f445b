// Package subshell coordinates the shells that tka starts: each has a private folder, and the package records which of them began the
// sign-in of this device. It keeps law 9: the next shell cleans up after a killed one, because only files that a live process holds are in
// use.
package subshell

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/tailplane/tailplane/internal/cli/ownfile"
)

// gateWait bounds how long a shell waits while another one inspects the folders.
const gateWait = 10 * time.Second

// A Room is the private folder of one running shell.
type Room struct {
	Folder string // for this shell only, mode 0700

	base   string
	server string
	held   *ownfile.Held
}

// File names. A room is a folder "room-…"; a server is named by its digest.
const (
	roomForm   = "room-*"
	aliveName  = "alive"
	serverName = "server"
	gateName   = "gate"
)

// Open creates the room of a shell that is about to sign in at server, in the folder base. It removes what dead shells left there.
func Open(ctx context.Context, base, server string) (_ *Room, err error) {
	if err := os.MkdirAll(base, 0o700); err != nil {
		return nil, err
	}
	if err := ownfile.CheckFolder(base); err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(server))
	r := &Room{base: base, server: hex.EncodeToString(sum[:16])}
	gate, err := r.gate(ctx)
	if err != nil {
		return nil, err
	}
	defer gate.Release()
	if err := r.sweep(); err != nil {
		return nil, err
	}
	if r.Folder, err = os.MkdirTemp(base, roomForm); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(r.Folder)
		}
	}()
	if r.held, err = ownfile.Hold(filepath.Join(r.Folder, aliveName)); err != nil {
		return nil, err
	}
	if r.held == nil {
		return nil, errors.New("a new file is held by another program")
	}
	return r, os.WriteFile(filepath.Join(r.Folder, serverName), []byte(r.server), 0o600)
}

// gate prevents other shells from inspecting the folders at the same time.
func (r *Room) gate(ctx context.Context) (*ownfile.Held, error) {
	return ownfile.HoldWithin(ctx, filepath.Join(r.base, gateName), gateWait)
}

// Turn prevents the other shells of the same server from signing in or out until the caller calls the returned function. It returns an
// error if it cannot get its turn within limit.
func (r *Room) Turn(ctx context.Context, limit time.Duration) (done func(), err error) {
	held, err := ownfile.HoldWithin(ctx, filepath.Join(r.base, "turn-"+r.server), limit)
	return held.Release, err
}

// sweep removes the rooms of dead shells, and the marks of servers at which no shell is signed in.
func (r *Room) sweep() error {
	rooms, err := filepath.Glob(filepath.Join(r.base, roomForm))
	if err != nil {
		return err
	}
	live := map[string]bool{}
	for _, dir := range rooms {
		held, err := ownfile.Hold(filepath.Join(dir, aliveName))
		if err == nil && held == nil {
			if server, err := ownfile.Read(filepath.Join(dir, serverName)); err == nil {
				live[string(server)] = true
			}
			continue
		}
		if held != nil { // the owner is dead; a room with an unknown owner stays
			os.RemoveAll(dir) // if this fails, the next shell tries again
			held.Release()
		}
	}
	marks, err := filepath.Glob(filepath.Join(r.base, markForm))
	for _, m := range marks {
		if !live[filepath.Base(m)[len(markForm)-1:]] {
			os.Remove(m)
		}
	}
	return err
}

const markForm = "began-*"

func (r *Room) mark() string { return filepath.Join(r.base, "began-"+r.server) }

// Began records that a shell began the sign-in at the server. The last shell there ends it.
func (r *Room) Began() error { return ownfile.Write(r.mark(), nil) }

// Kept records that the person wants the sign-in at a server to outlive the shells.
func Kept(base, server string) error {
	sum := sha256.Sum256([]byte(server))
	err := os.Remove(filepath.Join(base, "began-"+hex.EncodeToString(sum[:16])))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// Leave removes the room. It reports whether other shells use the same server and whether a shell began the sign-in there. While there are
// others, the last one of them gets the same report.
func (r *Room) Leave(ctx context.Context) (others, began bool, err error) {
	gate, err := r.gate(ctx)
	defer gate.Release() // continue without the gate, which is better than leaving a folder behind
	rooms, gerr := filepath.Glob(filepath.Join(r.base, roomForm))
	for _, dir := range rooms {
		server, rerr := ownfile.Read(filepath.Join(dir, serverName))
		if dir == r.Folder || rerr != nil || string(server) != r.server {
			continue
		}
		held, herr := ownfile.Hold(filepath.Join(dir, aliveName))
		others = others || herr == nil && held == nil
		held.Release()
	}
	_, merr := os.Lstat(r.mark())
	began = merr == nil
	if began && !others {
		os.Remove(r.mark())
	}
	rerr := os.RemoveAll(r.Folder)
	r.held.Release()
	return others, began, errors.Join(err, gerr, rerr)
}
