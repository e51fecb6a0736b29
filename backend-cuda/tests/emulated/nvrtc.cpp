// NVRTC, as far as the backend uses it: kernels become a library of the processor's, behind shim.h, whose text
// is SHIM. Its version is none that exists: its minor is STAMP, a number for the text of the emulated libraries beyond any
// real one, so that no image that was kept is taken for another's.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <unistd.h>

namespace {

enum Result { SUCCESS, INVALID_PROGRAM = 4, INVALID_OPTION = 5, COMPILATION = 6 };

struct Program { std::string source, log, image; };

const char* const SHIM =
#include "shim.text"
    ;

std::string content(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::stringstream all;
    all << file.rdbuf();
    return all.str();
}

// Every kernel under its name, for cuModuleGetFunction.
std::string table(const std::string& source) {
    std::istringstream lines(source);
    std::string line, table, global = "GLOBAL ";
    while (std::getline(lines, line)) {
        if (line.compare(0, global.size(), global)) continue;
        std::string name = line.substr(global.size(), line.find('(') - global.size());
        table += "static bool " + name + "_ = emulation::add<" + name + ">(\"" + name + "\");\n";
    }
    return table;
}

}  // namespace

extern "C" {

int nvrtcVersion(int* major, int* minor) {
    const char* set = getenv("EMULATED_CUDA");  // another CUDA than that of the program
    *major = set ? atoi(set) : 13;
    *minor = STAMP;
    return SUCCESS;
}

int nvrtcCreateProgram(Program** program, const char* source, const char*, int, const char**, const char**) {
    *program = new Program{source, "", ""};
    return SUCCESS;
}

int nvrtcCompileProgram(Program* program, int n_options, const char** options) {
    bool is_chip_named = false;
    for (int i = 0; i < n_options; i++) is_chip_named |= !strncmp(options[i], "--gpu-architecture=sm_", 22);
    if (!is_chip_named) return INVALID_OPTION;
    std::string source = program->source, shared = "extern __shared__ __align__(16) float shared[];";
    // The only other name of a block's dynamic shared memory.
    for (size_t at; (at = source.find(shared)) != std::string::npos;)
        source.replace(at, shared.size(), "float* shared = (float*)dynamic_shared;");
    // A program is compiled by one thread.
    std::string name = "emulated-" + std::to_string(getpid()) + "-" + std::to_string(uintptr_t(program));
    std::filesystem::path folder = std::filesystem::temp_directory_path() / name;
    std::filesystem::create_directory(folder);
    std::string stem = (folder / "kernels").string(), compiler = getenv("CXX") ? getenv("CXX") : "c++";
    std::ofstream(stem + ".cpp") << SHIM << source << table(source);
    std::string command = compiler + " -std=c++17 -O2 -fPIC -shared -w -U_FORTIFY_SOURCE -o " + stem + ".so " + stem +
                          ".cpp 2> " + stem + ".log";
    int code = system(command.c_str());
    program->log = content(stem + ".log");
    std::string library = content(stem + ".so");
    std::filesystem::remove_all(folder);
    if (code) return COMPILATION;
    uint64_t bytes = library.size();
    program->image = "EMULATED" + std::string((char*)&bytes, 8) + library;
    return SUCCESS;
}

int nvrtcGetProgramLogSize(Program* program, size_t* bytes) {
    *bytes = program->log.size() + 1;
    return SUCCESS;
}

int nvrtcGetProgramLog(Program* program, char* log) {
    memcpy(log, program->log.c_str(), program->log.size() + 1);
    return SUCCESS;
}

int nvrtcGetCUBINSize(Program* program, size_t* bytes) {
    *bytes = program->image.size();
    return program->image.empty() ? INVALID_PROGRAM : SUCCESS;
}

int nvrtcGetCUBIN(Program* program, char* image) {
    memcpy(image, program->image.data(), program->image.size());
    return program->image.empty() ? INVALID_PROGRAM : SUCCESS;
}

int nvrtcDestroyProgram(Program** program) {
    delete *program;
    *program = nullptr;
    return SUCCESS;
}

}  // extern "C"
