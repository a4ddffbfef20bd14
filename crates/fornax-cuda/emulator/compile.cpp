//! NVRTC's functions: kernels for the emulated device by the host's compiler. Its preprocessor resolves macros;
//! then other words are put for what it does not know (`asm`, `__shared__`), and for each kernel one that calls it.

#include <dlfcn.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "core.h"

namespace {

using std::string;

[[noreturn]] void failed(const string& why, const string& text) {
    emu_fail((why + ": " + text.substr(0, 200)).c_str());
}

bool is_word(char c) { return isalnum((unsigned char)c) || c == '_'; }

/// Behind the character that closes what `at` opens; strings are skipped.
size_t behind_closing(const string& text, size_t at) {
    const string open = "([{", close = ")]}";
    int depth = 0;
    for (; at < text.size(); at++) {
        if (text[at] == '"') {
            for (at++; text[at] != '"'; at++)
                if (text[at] == '\\') at++;
        } else if (open.find(text[at]) != string::npos) depth++;
        else if (close.find(text[at]) != string::npos && --depth == 0) return at + 1;
    }
    failed("nothing closes", text);
}

/// Parts between separators that stand outside of brackets and strings.
std::vector<string> split(const string& text, char separator) {
    std::vector<string> parts(1);
    for (size_t at = 0; at < text.size();) {
        size_t next = at + 1;
        if (text[at] == '(' || text[at] == '[' || text[at] == '{') next = behind_closing(text, at);
        else if (text[at] == '"')
            while (text[next++] != '"')
                if (text[next - 1] == '\\') next++;
        if (text[at] == separator) parts.emplace_back();
        else parts.back() += text.substr(at, next - at);
        at = next;
    }
    return parts;
}

string trimmed(string text) {
    while (!text.empty() && isspace((unsigned char)text.back())) text.pop_back();
    size_t first = 0;
    while (first < text.size() && isspace((unsigned char)text[first])) first++;
    return text.substr(first);
}

/// `"=r"(x), "+r"(y)` or `"r"(x), "l"(y)`, each as an operand.
string operands(const string& text, bool results) {
    string out;
    for (const string& part : split(text, ',')) {
        string operand = trimmed(part);
        if (operand.empty()) continue;
        size_t open = operand.find('(');
        string name = operand.substr(0, open), value = operand.substr(open);
        char kind = name[name.find_last_of('"') - 1];
        const char* type = kind == 'f' ? "float" : kind == 'h' ? "unsigned short" : kind == 'l' ? "" : "unsigned";
        out += results ? "emu_out" + value : *type ? "emu_in((" + string(type) + ")" + value + ")" : "emu_in" + value;
        out += ", ";
    }
    return out;
}

/// What is put for the `asm` statement whose parenthesis is this one.
string instruction(const string& inside) {
    std::vector<string> parts = split(inside, ':'); // of `::` nothing is between
    // Said to the compiler alone: the host's does not go on with what an instruction may still write to.
    if (trimmed(parts[0]) == "\"\"") return "do {} while (0)";
    parts.resize(4);
    return "do { static const EmuInstruction* const emu_known = emu_find(" + parts[0] + "); EmuOperand emu_operands[] = {" + operands(parts[1], true) +
           operands(parts[2], false) + "{nullptr, 0}}; emu_run(emu_known, emu_operands); } while (0)";
}

string without_attribute(const string& declaration) {
    size_t at = declaration.find("__attribute__");
    if (at == string::npos) return declaration;
    return declaration.substr(0, at) + declaration.substr(behind_closing(declaration, declaration.find('(', at)));
}

/// What is declared: the last word before an array's lengths.
string name_of(const string& declarator) {
    size_t end = std::min(declarator.find('['), declarator.size());
    while (!is_word(declarator[end - 1])) end--;
    size_t begin = end;
    while (begin > 0 && is_word(declarator[begin - 1])) begin--;
    return declarator.substr(begin, end - begin);
}

/// What is put for a declaration of shared memory, from behind that word to before the semicolon.
string shared(const string& declaration, bool dynamic, unsigned number) {
    string plain = without_attribute(declaration);
    if (dynamic) {
        string name = name_of(plain);
        return "auto* " + name + " = emu_dynamic<" + trimmed(plain.substr(0, plain.rfind(name))) + ">()";
    }
    string type = "EmuShared" + std::to_string(number), place = "emu_shared" + std::to_string(number);
    string out = "struct " + type + " {" + declaration + ";}; " + type + "& " + place + " = emu_shared<" + type + ">()";
    for (const string& declarator : split(plain, ',')) out += "; auto& " + name_of(declarator) + " = " + place + "." + name_of(declarator);
    return out;
}

/// A preprocessed text for the host's compiler, and one that calls each of its kernels.
string translated(const string& text) {
    string out;
    std::set<string> kernels;
    unsigned number = 0;
    for (size_t at = 0; at < text.size();) {
        if (!is_word(text[at])) { out += text[at++]; continue; }
        size_t end = at;
        while (end < text.size() && is_word(text[end])) end++;
        string word = text.substr(at, end - at);
        if (word == "asm") {
            size_t open = text.find('(', end), behind = behind_closing(text, open);
            out += instruction(text.substr(open + 1, behind - open - 2));
            at = behind;
        } else if (word == "__shared__") {
            bool dynamic = out.size() > 7 && out.substr(out.size() - 7) == "extern ";
            if (dynamic) out.resize(out.size() - 7);
            size_t semicolon = text.find(';', end);
            out += shared(text.substr(end, semicolon - end), dynamic, number++);
            at = semicolon;
        } else if (word == "__global__") {
            kernels.insert(name_of(text.substr(end, text.find('(', end) - end)));
            at = end;
        } else {
            out += word;
            at = end;
        }
    }
    for (const string& kernel : kernels)
        out += "\nextern \"C\" void emu_call_" + kernel + "(void** with) { emu_call(" + kernel + ", with); }\nextern \"C\" size_t emu_sizes_" + kernel +
               "(size_t* sizes) { return emu_sizes(" + kernel + ", sizes); }";
    return out;
}

string read(const string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}
void write(const string& path, const string& text) { std::ofstream(path, std::ios::binary) << text; }

/// Where this library is: what kernels call is in it.
string own_path() {
    Dl_info info;
    dladdr((void*)&own_path, &info);
    return info.dli_fname;
}

/// A folder of our own, which is gone with what is in it when this is.
struct Folder {
    string path = "/tmp/emulated-XXXXXX";

    Folder() { if (!mkdtemp(path.data())) emu_fail("no folder for a kernel's text"); }
    Folder(const Folder&) = delete;
    ~Folder() { std::error_code ignored; std::filesystem::remove_all(path, ignored); }
    string at(const char* name) const { return path + "/" + name; }
};

const string COMPILER = "c++ -std=c++17 -w ";
// Compiled in half the time that more optimisation takes. What is small comes in the place of its calls, which gives back
// the tenth that it would take longer to run.
const string OPTIONS = "-Og -finline-functions -finline-small-functions -march=native -fPIC -ftls-model=initial-exec -fno-gnu-unique -fno-strict-aliasing -ffp-contract=off -fno-exceptions -fno-rtti ";
const string HEADERS = "-I'" EMU_HEADERS "' ";

/// Where the compiler finds the device's header read already, which takes it as long as many a kernel.
const string& headers_read() {
    static const Folder folder;
    static const string found = [] {
        const string made = COMPILER + OPTIONS + HEADERS + "-x c++-header '" EMU_HEADERS "/machine.h' -o " + folder.at("machine.h.gch");
        if (system(made.c_str()) != 0) emu_fail("the compiler cannot read the device's header");
        return "-I" + folder.path + " " + HEADERS;
    }();
    return found;
}

struct Program {
    string source, log, code;
};

bool run(const string& command, const string& log, Program& program) {
    bool done = system((command + " 2>" + log).c_str()) == 0;
    program.log += read(log);
    return done;
}

} // namespace

extern "C" {

int nvrtcVersion(int* major, int* minor) { *major = 13; *minor = 0; return 0; }
const char* nvrtcGetErrorString(int) { return "an error of the emulated compiler"; }

int nvrtcCreateProgram(Program** program, const char* source, const char*, int, const char* const*, const char* const*) {
    *program = new Program{source, "", ""};
    return 0;
}
int nvrtcDestroyProgram(Program** program) { delete *program; *program = nullptr; return 0; }

int nvrtcCompileProgram(Program* program, int count, const char* const* options) {
    const Folder folder;
    string defines;
    for (int i = 0; i < count; i++)
        if (string option = options[i]; option.substr(0, 2) == "-D") defines += " '" + option + "'";
        else if (option == "--gpu-architecture=sm_90a") defines += " -D__CUDA_ARCH__=900 -D__CUDA_ARCH_FEAT_SM90_ALL";
    const string text = folder.at("text.cpp"), whole = folder.at("whole.cpp"), kernel = folder.at("kernel.cpp");
    const string code = folder.at("kernel.so"), log = folder.at("log");
    write(text, "#include \"words.h\"\n" + program->source);
    bool done = run(COMPILER + HEADERS + "-E -P" + defines + " " + text + " -o " + whole, log, *program);
    if (done) {
        write(kernel, "#include \"machine.h\"\n" + translated(read(whole)));
        done = run(COMPILER + OPTIONS + headers_read() + "-shared " + kernel + " '" + own_path() + "' -o " + code, log, *program);
    }
    if (done) program->code = read(code);
    return done ? 0 : 6;
}
int nvrtcGetProgramLogSize(Program* program, size_t* size) { *size = program->log.size() + 1; return 0; }
int nvrtcGetProgramLog(Program* program, char* log) { memcpy(log, program->log.c_str(), program->log.size() + 1); return 0; }
int nvrtcGetCUBINSize(Program* program, size_t* size) { *size = program->code.size() + 8; return 0; }
/// Its length stands first.
int nvrtcGetCUBIN(Program* program, char* code) {
    uint64_t size = program->code.size();
    memcpy(code, &size, 8);
    memcpy(code + 8, program->code.data(), size);
    return 0;
}
}
