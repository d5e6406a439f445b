package frames

import (
	"compress/zlib"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Bounds of a block of headers. Kubernetes sends at most three short headers.
const (
	maxHeaders     = 64
	maxHeaderName  = 256
	maxHeaderValue = 4 << 10
	maxHeaderBlock = 64 << 10
)

// dictionary returns the dictionary of the header compression: SPDY/3, section 2.6.10.1. Its first part are names with their lengths.
func dictionary() []byte {
	const names = "options,head,post,put,delete,trace,accept,accept-charset,accept-encoding,accept-language,accept-ranges,age,allow," +
		"authorization,cache-control,connection,content-base,content-encoding,content-language,content-length,content-location," +
		"content-md5,content-range,content-type,date,etag,expect,expires,from,host,if-match,if-modified-since,if-none-match,if-range," +
		"if-unmodified-since,last-modified,location,max-forwards,pragma,proxy-authenticate,proxy-authorization,range,referer," +
		"retry-after,server,te,trailer,transfer-encoding,upgrade,user-agent,vary,via,warning,www-authenticate,method,get,status," +
		"200 OK,version,HTTP/1.1,url,public,set-cookie,keep-alive,origin"
	const rest = "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505" +
		"203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden" +
		"404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable" +
		"Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT" +
		"chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript," +
		"publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
	var b []byte
	for name := range strings.SplitSeq(names, ",") {
		b = binary.BigEndian.AppendUint32(b, uint32(len(name)))
		b = append(b, name...)
	}
	return append(b, rest...)
}

// headerReader decompresses the blocks of one side, which share one compression. It cannot be used after an error.
type headerReader struct {
	block   []byte // what is left of the present block, compressed
	inflate io.Reader
	read    int // bytes of the present block, decompressed
}

// ReadByte and Read give the present block to the decompressor, which reads single bytes, so never more than it needs.
func (h *headerReader) ReadByte() (byte, error) {
	if len(h.block) == 0 {
		return 0, io.EOF
	}
	b := h.block[0]
	h.block = h.block[1:]
	return b, nil
}

func (h *headerReader) Read(p []byte) (int, error) {
	if len(h.block) == 0 {
		return 0, io.EOF
	}
	n := copy(p, h.block)
	h.block = h.block[n:]
	return n, nil
}

// parse reads a block. A block must hold exactly its headers: the server would take what is left for the start of the next one.
func (h *headerReader) parse(block []byte) (map[string]string, error) {
	h.block, h.read = block, 0
	if h.inflate == nil {
		z, err := zlib.NewReaderDict(h, dictionary())
		if err != nil {
			return nil, fmt.Errorf("decompress headers: %w", err)
		}
		h.inflate = z
	}
	count, err := h.number(maxHeaders)
	if err != nil {
		return nil, err
	}
	headers := map[string]string{}
	for range count {
		name, err := h.text(maxHeaderName)
		if err != nil {
			return nil, err
		}
		value, err := h.text(maxHeaderValue)
		if err != nil {
			return nil, err
		}
		if _, twice := headers[name]; twice || name == "" || name != strings.ToLower(name) {
			return nil, fmt.Errorf("the header %.40q is there twice, empty or in upper case", name)
		}
		headers[name] = value
	}
	if len(h.block) > 0 {
		return nil, errors.New("bytes follow the headers")
	}
	return headers, nil
}

func (h *headerReader) fill(p []byte) error {
	if h.read += len(p); h.read > maxHeaderBlock {
		return errors.New("the headers are too long")
	}
	if _, err := io.ReadFull(h.inflate, p); err != nil {
		return fmt.Errorf("decompress headers: %w", err)
	}
	return nil
}

func (h *headerReader) number(most uint32) (uint32, error) {
	var b [4]byte
	if err := h.fill(b[:]); err != nil {
		return 0, err
	}
	n := binary.BigEndian.Uint32(b[:])
	if n > most {
		return 0, fmt.Errorf("a number of the headers is %d, more than %d", n, most)
	}
	return n, nil
}

func (h *headerReader) text(most uint32) (string, error) {
	n, err := h.number(most)
	if err != nil {
		return "", err
	}
	b := make([]byte, n)
	err = h.fill(b)
	return string(b), err
}
