// Asio and Beast are compiled once, here; the sources of the HTTP server see declarations only.
#include <boost/asio/impl/src.hpp>
#include <boost/beast/src.hpp>
