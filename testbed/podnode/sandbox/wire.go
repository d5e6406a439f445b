//go:build linux

package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
)

// message is one step of a conversation between the node and a first process. File descriptors are sent with it.
type message struct {
	Op      string   `json:"op,omitempty"` // of a request
	Address string   `json:"address,omitempty"`
	Root    *Root    `json:"root,omitempty"`
	Process *Process `json:"process,omitempty"`
	Signal  int      `json:"signal,omitempty"`

	Error  string `json:"error,omitempty"` // of a response
	Exited *Exit  `json:"exited,omitempty"`
}

// Operations of a first process. One connection is one request. If the request starts a process, that process lives
// as long as the connection: it is killed when the connection closes.
const (
	opListen    = "listen"    // at Address; the response contains the listener
	opDial      = "dial"      // Address; the response contains the connection
	opMemory    = "memory"    // mount a file system in memory at Address
	opContainer = "container" // start a container's first process; the request contains its listener
	opRoot      = "root"      // of a container: make Root the root directory
	opRun       = "run"       // start Process; the request contains its three standard streams
	opSignal    = "signal"    // within opRun: send Signal
)

// messageLimit is the maximum size of a packet. The environment of a process is the largest part.
const messageLimit = 192 << 10

func send(c *net.UnixConn, m message, files ...*os.File) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(b) > messageLimit {
		return fmt.Errorf("%s: %d bytes, more than the limit of %d", m.Op, len(b), messageLimit)
	}
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	var rights []byte
	if len(fds) > 0 {
		rights = syscall.UnixRights(fds...)
	}
	_, _, err = c.WriteMsgUnix(b, rights, nil)
	return err
}

// receive returns the next message. io.EOF means that the other end is gone.
func receive(c *net.UnixConn) (message, []*os.File, error) {
	var m message
	b, oob := make([]byte, messageLimit), make([]byte, syscall.CmsgSpace(4*4))
	n, on, _, _, err := c.ReadMsgUnix(b, oob)
	if err != nil {
		return m, nil, err
	}
	if n == 0 {
		return m, nil, io.EOF
	}
	var files []*os.File
	cs, err := syscall.ParseSocketControlMessage(oob[:on])
	if err != nil {
		return m, nil, err
	}
	for i := range cs {
		fds, err := syscall.ParseUnixRights(&cs[i])
		if err != nil {
			return m, nil, err
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	if err := json.Unmarshal(b[:n], &m); err != nil {
		closeAll(files)
		return m, nil, err
	}
	if m.Error != "" {
		closeAll(files)
		return m, nil, errors.New(m.Error)
	}
	return m, files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
